// Texts in a simulation: each peer's real part in them, over the world's clock and links, and readers who ask for texts while
// faults happen. What they get must be what the one-process run's weights write, and every text must end.
import { createSampler } from "../../peer/engine/sampler.ts";
import { baseSpec, wholeModel } from "../../peer/model/layout.ts";
import { mergeLora } from "../../peer/model/lora.ts";
import { decodeFrame } from "../../peer/wire/frame.ts";
import type { ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import type { WriteOrder } from "../../peer/wire/texts.ts";
import { Writer } from "../../peer/writer.ts";
import { TEXT_MS } from "../../coordinator/core/texts.ts";
import type { TextTold, TextWish } from "../../coordinator/core/text_state.ts";
import type { RunEffect } from "../../coordinator/core/run_state.ts";
import { between } from "./faults.ts";
import { frozenBase } from "../support/frozen_base.ts";
import { seededRandom } from "../support/random.ts";
import type { KeepingWorld } from "./keeping.ts";
import type { Reference } from "./reference.ts";
import { wake } from "./sleep.ts";
import type { Observer, SimPeer } from "./types.ts";
import type { World } from "./world.ts";

/** What a simulated peer may take for copies. */
const ROOM_BYTES = 1e9;

export function writerOf(world: KeepingWorld, id: string): Writer {
  const { clock, options: { spec } } = world;
  return new Writer({
    ...{ self: id, incarnation: 1, spec, iceServers: [], room: () => ROOM_BYTES },
    ...{ mayWrite: () => true, busy: () => false },
    weightsOf: (stage, params) => Promise.resolve(weightsOf(spec, stage, params)),
    host: {
      connect: (other) => world.links.connect(id, other),
      send: (to, bytes) => {
        if (!world.links.carries(id, to)) return;
        world.network.send(id, to, "frames", () => arrive(world, { from: id, to, bytes }));
      },
    },
    say: (message) => world.say(id, message),
    clock: {
      now: () => clock.now,
      after: (ms, task) => {
        clock.after(ms, () => wake(world.peers.get(id), task));
        return () => {};
      },
    },
  });
}

function weightsOf(spec: ModelSpec, stage: StageSpec, params: Float32Array): Float32Array {
  if (spec.lora === undefined) return params;
  const { weights } = frozenBase({ spec, stage });
  return mergeLora(spec, stage, { base: weights, adapters: params, out: weights });
}

/** The coordinator's word. Jobs are done in one go here, so this is between two of them. */
export function orderText(peer: SimPeer, order: WriteOrder): void {
  peer.writer.order(order);
  if (order.order === "open") void settleTexts(peer);
}

/** After a job, before what follows from it. */
export async function settleTexts(peer: SimPeer): Promise<void> {
  if (!peer.dead && peer.writer.waits) await peer.writer.settle(peer.holder.instances());
}

function arrive(world: KeepingWorld, { from, to, bytes }: { from: string; to: string; bytes: Uint8Array }) {
  return wake(world.peers.get(to), () => {
    const frame = decodeFrame(bytes);
    if (!frame.ok) throw new Error(`a text's frame was refused: ${frame.reason}`);
    world.peers.get(to)!.writer.receive(from, frame.value.header, frame.value.payload);
  });
}

interface Asked {
  wish: TextWish;
  tokens: number[];
  begun: { step: number; restarts: number }[];
  ended: "" | "end" | "failed" | "lost";
  reason: string;
}

/** Ask for texts while the world goes on, each somewhat later than the one before. */
export class Readers implements Observer {
  readonly asked = new Map<number, Asked>();
  readonly #world: World;
  readonly #reference: Reference;

  constructor(world: World, reference: Reference, count: number) {
    this.#world = world;
    this.#reference = reference;
    const random = seededRandom(world.options.seed + 77);
    for (let id = 1; id <= count; id++) {
      world.at(between(random, 200, 4_000), () => this.#ask(id, random));
    }
    world.observers.push(this);
  }

  /** The run may be over before its texts are: each ends in its time. */
  async settle(): Promise<void> {
    const open = () => [...this.asked.values()].some(({ ended }) => ended === "");
    for (let ms = 0; open() && ms < 2 * TEXT_MS; ms += 1_000) await this.#world.drain(1_000);
  }

  #ask(id: number, random: () => number): void {
    const { vocab_size: V, block_size: T } = this.#world.options.spec;
    if (!this.#world.process.up) return;
    const prompt = Array.from({ length: between(random, 1, 3 * T) }, () => Math.floor(random() * V)).slice(
      -T,
    );
    const wish = { prompt, count: between(random, 1, 30), temperature: 1, topK: 0, topP: 1, seed: id };
    this.asked.set(id, { wish, tokens: [], begun: [], ended: "", reason: "" });
    this.#world.process.take({ type: "text", id, wish });
  }

  coordinator(effect: RunEffect): void {
    if (effect.do === "text") this.#hear(this.asked.get(effect.id)!, effect.told);
  }

  restarted(): void {
    for (const text of this.asked.values()) if (text.ended === "") text.ended = "lost";
  }

  #hear(text: Asked, told: TextTold): void {
    if (text.ended !== "") throw new Error(`a text goes on after its end: ${told.what}`);
    if (told.what === "token") text.tokens.push(told.token);
    else if (told.what === "begun") text.begun.push(told);
    else if (told.what === "end") this.#finish(text);
    else Object.assign(text, { ended: "failed", reason: told.reason });
  }

  #finish(text: Asked): void {
    const { wish, tokens, begun } = text;
    text.ended = "end";
    if (tokens.length !== wish.count) throw new Error(`${tokens.length} tokens of ${wish.count}`);
    const [first] = begun;
    // The last bits of tied embeddings depend on the cut, so of those there is no one right text.
    if (begun.length !== 1 || first!.restarts !== 0 || !this.#reference.exact) return;
    const { spec } = this.#world.options;
    const weights = weightsOf(spec, wholeModel(spec), this.#reference.params(first!.step));
    const whole = createSampler(baseSpec(spec), weights).generate(wish.prompt, wish);
    if (whole.join() !== tokens.join()) throw new Error(`step ${first!.step} wrote ${tokens}, not ${whole}`);
  }
}
