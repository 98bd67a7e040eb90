// Input that must come to nothing: frames and messages sent once more, long after their time, in another's name, or changed.
// Each is made so that the protocol's rules refuse it whatever the run does next; that it was refused is checked at once.
import { mix32 } from "../../peer/exact/hash.ts";
import type { FrameCodec } from "../../peer/wire/frame.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import { peersOf } from "../../peer/wire/view.ts";
import type { Invariants } from "./invariants.ts";
import { holdsStage, isMember, stepAt } from "./probe.ts";
import type { Sent } from "./types.ts";
import type { World } from "./world.ts";

/** Frames and messages remembered, to send them again. */
const REMEMBERED_MAX = 200;

interface Said {
  peer: string;
  message: PeerMessage;
}

export class Forgery {
  readonly #world: World;
  readonly #invariants: Invariants;
  readonly #frames: Sent[] = [];
  readonly #messages: Said[] = [];

  constructor(world: World, invariants: Invariants) {
    this.#world = world;
    this.#invariants = invariants;
  }

  remember(frame: Sent): void {
    keepNewest(this.#frames, frame);
  }

  rememberMessage(peer: string, message: PeerMessage): void {
    const { type } = message;
    const counts = "gen" in message || "cut" in message || type === "leave" || type === "pause";
    if (counts) keepNewest(this.#messages, { peer, message });
  }

  /** Draws one frame and one message, and sends what can be made of them. Returns the names of what was sent. */
  attempt(salt: number, i: number, change: boolean): string[] {
    const done: string[] = [];
    const frame = at(this.#frames, chance(salt, `frame ${i}`));
    if (frame !== undefined) {
      done.push(...this.#again(frame, change), ...this.#inAnothersName(frame, salt + i));
    }
    const said = at(this.#messages, chance(salt, `message ${i}`));
    if (said !== undefined) done.push(...this.#messageAgain(said), ...this.#ofAnotherStage(said));
    return done;
  }

  /** An old frame must be refused; one that was taken in this generation must not be taken twice. */
  #again(frame: Sent, change: boolean): string[] {
    const stale = this.#isStale(frame);
    if (!stale && !this.#invariants.wasKept(frame)) return [];
    const forged = stale ? "replayed frame" : "doubled frame";
    this.#world.inject({
      ...frame,
      payload: change ? changed(frame.payload, frame.header.codec) : frame.payload,
      forged,
    });
    return [forged];
  }

  /** A frame of right now, from a peer that has no part in the stage it names. */
  #inAnothersName(frame: Sent, salt: number): string[] {
    const { header, to, from } = frame;
    const others = [...this.#world.peers.keys()].filter((id) => id !== from && id !== to);
    const other = at(others, chance(salt, "name"));
    const view = this.#world.peers.get(to)?.core.state.view;
    if (other === undefined || !view || holdsStage(view, header.fromStage, other)) return [];
    if (holdsStage(view, header.toStage, other)) return [];
    // Its stages may be others in a view that is on its way to the receiver.
    if (view.gen !== this.#world.coordinator.state.gen) return [];
    const forged = "frame in another's name";
    this.#world.inject(
      { ...frame, from: other, payload: changed(frame.payload, header.codec), forged },
      true,
    );
    return [forged];
  }

  #messageAgain(said: Said): string[] {
    if (!this.#isStaleMessage(said)) return [];
    this.#invariants.mustIgnore(said.peer, said.message);
    return ["replayed message"];
  }

  /** A member may only speak for the stages that it holds. */
  #ofAnotherStage({ peer, message }: Said): string[] {
    const { view, peers } = this.#world.coordinator.state;
    if (!("stage" in message) || view === null || peers[peer] === undefined) return [];
    const stage = view.stages.findIndex((_, s) => !holdsStage(view, s, peer));
    if (stage < 0) return [];
    const now = "cut" in message ? { cut: view.cut } : { gen: view.gen };
    this.#invariants.mustIgnore(peer, { ...message, ...now, stage } as PeerMessage);
    return ["message of another stage"];
  }

  #isStale({ from, to, header }: Sent): boolean {
    const receiver = this.#world.peers.get(to);
    if (receiver === undefined || receiver.dead) return false;
    const { state } = receiver.core;
    if (header.cut < (state.view?.cut ?? 0) || header.step < stepAt(state, header.toStage)) return true;
    if (header.kind === "part" || header.kind === "tied") return header.gen < state.gen;
    return header.gen < state.gen && !isMember(state, from);
  }

  #isStaleMessage({ peer, message }: Said): boolean {
    const { peers, view } = this.#world.coordinator.state;
    if (peers[peer] === undefined) return true;
    if (view === null || !peersOf(view).includes(peer)) return false;
    return "cut" in message && message.cut < view.cut || "gen" in message && message.gen < view.cut;
  }
}

function keepNewest<T>(list: T[], item: T): void {
  list.push(item);
  if (list.length > REMEMBERED_MAX) list.shift();
}

/** One bit of a value is another: a payload that decodes, and is wrong. Padding, which nobody reads, is left alone. */
export function changed(payload: Uint8Array, codec: FrameCodec): Uint8Array {
  const copy = payload.slice();
  // Packed integers begin with their widths; what follows the first half are values.
  copy[codec === "packed" ? copy.length >> 1 : 0]! ^= 1;
  return copy;
}

/** The same for a state file: the first bit of its first tensor, behind the length and the header. */
export function changedFile(bytes: Uint8Array): Uint8Array {
  const copy = bytes.slice();
  const header = new DataView(copy.buffer).getUint32(0, true);
  copy[8 + header]! ^= 1;
  return copy;
}

export function at<T>(items: readonly T[], fraction: number): T | undefined {
  return items[Math.floor(fraction * items.length)];
}

/** 0 to 1, a function of its arguments only: which pairs a fault touches must not depend on when they first talk. */
export function chance(salt: number, text: string): number {
  let h = salt >>> 0;
  for (let i = 0; i < text.length; i++) h = mix32(h ^ Math.imul(text.charCodeAt(i) + i, 0x9e3779b1));
  return mix32(h) / 4294967296;
}
