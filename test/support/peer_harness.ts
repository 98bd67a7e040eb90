// A peer's core with a view of two stages of two replicas each, fed by hand: for unit tests of fencing and of the order of
// things. Jobs are finished by the test; nothing is computed.
import assert from "node:assert/strict";
import { PeerCore } from "../../peer/core/peer_core.ts";
import type {
  FrameOut,
  Instance,
  Job,
  JobResult,
  PeerEffect,
  PeerEvent,
} from "../../peer/core/peer_state.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, splitLayers, stageLayout } from "../../peer/model/layout.ts";
import type { PeerMessage, StateFile } from "../../peer/wire/control.ts";
import type { FrameHeader } from "../../peer/wire/frame.ts";
import type { ReplicaPlan, RunConfig, ScheduleId, StagePlan, View } from "../../peer/wire/run.ts";

/** The cut began before the present generation, so that a test notices where one is taken for the other. */
export const CUT = 3;
export const GEN = 5;
const VOCABULARY = 7;
/** All micro-batches of a step. */
export const WHOLE = [0, 1, 2, 3];

export function tinyConfig(changes: Record<string, unknown> = {}): RunConfig {
  return readConfig({
    ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 4, batch_size: 2 },
    ...{ gradient_accumulation_steps: 4, max_iters: 10, warmup_iters: 0, eval_iters: 6 },
    ...{ codec_forward: "i8b64", codec_backward: "f16s", ...changes },
  });
}

/** Replicas in words: "a:02" computes micro-batches 0 and 2, "e" is a shadow, "f?" learns. */
export function replicasOf(text: string): ReplicaPlan[] {
  return text.split(" ").map((word) => {
    const [, peer = "", learning = "", share = ""] = /^(\w)(\??):?(\d*)$/.exec(word) ?? assert.fail(word);
    const plan = { peer, microBatches: [...share].map(Number) };
    return learning === "" ? plan : { ...plan, learning: true };
  });
}

/** Frames that belong to a round; pieces of snapshots do not. */
export type RoundKind = Exclude<FrameHeader["kind"], "snapshot" | "probe" | "text">;

/** Stage 0 on a (0, 2) and b (1, 3), stage 1 on c (0, 2) and d (1, 3), and a shadow of stage 1 on e. */
const HOLDERS = ["a:02 b:13", "c:02 d:13 e"];

export function tinyView(config: RunConfig, holders = HOLDERS, changes: Partial<View> = {}): View {
  const spec = specOf(config, VOCABULARY);
  const stages = splitLayers(spec, holders.map(() => 1)).map((stage, s): StagePlan => ({
    ...stage,
    inflight: 4,
    replicas: replicasOf(holders[s]!),
  }));
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  return { gen: GEN, cut: CUT, baseStep: 0, stages, schedule: orderOf(config), ...codecs, ...changes };
}

/** A view always names one. */
function orderOf({ schedule }: RunConfig): ScheduleId {
  return schedule === "auto" ? "dynamic" : schedule;
}

export class PeerHarness {
  readonly core: PeerCore;
  readonly config: RunConfig;
  view: View;

  constructor(id: string, changes: Record<string, unknown> = {}, holders = HOLDERS) {
    this.config = tinyConfig(changes);
    this.core = new PeerCore(id, this.config, specOf(this.config, VOCABULARY));
    this.view = tinyView(this.config, holders);
  }

  /** A peer that has loaded the view, has all its links, and in which a training round is open. */
  static inRound(id: string, changes: Record<string, unknown> = {}, holders = HOLDERS): PeerHarness {
    const peer = new PeerHarness(id, changes, holders);
    peer.load();
    peer.open(0);
    return peer;
  }

  get state() {
    return this.core.state;
  }

  /** The instance of a stage that this peer must have. */
  instance(stage: number): Instance {
    const found = this.state.instances.find((it) => it.plan.index === stage);
    assert.ok(found, `stage ${stage} is not held`);
    return found;
  }

  step(event: PeerEvent): PeerEffect[] {
    return this.core.step(event);
  }

  load(): PeerEffect[] {
    const effects = this.step({ type: "view", view: this.view, source: null });
    if (this.state.busy !== null) effects.push(...this.finish());
    for (const peer of this.state.neighbours) {
      effects.push(...this.link(peer));
    }
    return effects;
  }

  open(step: number, pass: "train" | "eval" = "train"): PeerEffect[] {
    return this.step({ type: "open", gen: this.view.gen, step, pass });
  }

  link(peer: string, open = true): PeerEffect[] {
    return this.step({ type: "link", peer, open, reason: "cut" });
  }

  /** The same cut under the next generation, with other holders. */
  amend(holders: string[], changes: Partial<View> = {}): PeerEffect[] {
    const gen = this.view.gen + 1;
    this.view = tinyView(this.config, holders, { gen, baseStep: this.state.committed, ...changes });
    return this.step({ type: "view", view: this.view, source: null });
  }

  /** The newest step is committed with these totals; the harness calls every total "h" unless a test says otherwise. */
  commit(step: number, hash = "h"): PeerEffect[] {
    const hashes = this.view.stages.map(() => hash);
    return this.step({ type: "commit", cut: CUT, step, gradNormSq: 1, hashes });
  }

  /** Ends the job that is running. */
  finish(result: JobResult = {}): PeerEffect[] {
    const job = this.state.busy;
    assert.ok(job !== null, "no job is running");
    return this.step({ type: "finished", job, result });
  }

  /** Ends jobs, one after the other, until the peer waits for somebody. */
  work(result: (job: Job) => JobResult = () => ({ loss: 1, hash: "h", gradNormSq: 1 })): PeerEffect[] {
    const effects: PeerEffect[] = [];
    while (this.state.busy !== null) effects.push(...this.finish(result(this.state.busy)));
    return effects;
  }

  /** Header of a well-formed frame to this peer's stage; kind decides the rest. */
  header(kind: RoundKind, changes: Partial<FrameHeader> = {}): FrameHeader {
    const { config, state, view } = this;
    const own = view.stages[changes.toStage ?? -1] ??
      view.stages.find((it) => it.replicas.some((r) => r.peer === state.id))!;
    const toStage = own.index;
    const step = state.instances.find((it) => it.plan.index === toStage)?.step ?? state.committed;
    const base = { gen: view.gen, cut: CUT, step, incarnation: 1, toStage, microBatch: 0, exponent: 0 };
    const boundary = { rows: config.batch_size * config.block_size, cols: config.n_embd, set: [] };
    const sum = { codec: "int32" as const, rows: 1, fromStage: toStage };
    const { size } = stageLayout(state.spec, own);
    const tiedSize = VOCABULARY * config.n_embd;
    const kinds = {
      activation: { ...boundary, codec: config.codec_forward, fromStage: toStage - 1 },
      gradient: { ...boundary, codec: config.codec_backward, fromStage: toStage + 1 },
      part: { ...sum, cols: size, set: [1, 3] },
      shard: { ...sum, cols: size, set: WHOLE },
      tied: { ...sum, fromStage: 1 - toStage, cols: tiedSize, set: WHOLE },
      total: { ...sum, cols: size + (config.tie_word_embeddings ? tiedSize : 0), set: WHOLE },
    };
    return { kind, pass: "train", ...base, ...kinds[kind], ...changes };
  }

  /** True if the frame was accepted; the payload is kept exactly then. */
  frame(from: string, header: FrameHeader): boolean {
    return this.receive(from, header).some((effect) => effect.do === "keep");
  }

  /** The same, with everything that follows from it. */
  receive(from: string, header: FrameHeader): PeerEffect[] {
    const { fenced } = this.state;
    const expected = this.core.expects(from, header);
    const effects = this.step({ type: "frame", from, header });
    const kept = effects.some((effect) => effect.do === "keep");
    assert.equal(kept, expected, "what is checked is not what is kept");
    assert.equal(this.state.fenced, fenced + (kept ? 0 : 1), "a refused frame was not counted");
    return effects;
  }
}

export function said(effects: PeerEffect[]): PeerMessage[] {
  return effects.flatMap((effect) => effect.do === "say" ? [effect.message] : []);
}

/** Messages without `losses`, which come beside the protocol's own and decide nothing. */
export function answers(effects: PeerEffect[]): PeerMessage[] {
  return said(effects).filter((message) => message.type !== "losses");
}

export function framesOf(effects: PeerEffect[]): FrameOut[] {
  return effects.flatMap((effect) => effect.do === "send" ? [effect.frame] : []);
}

/** Frames that were sent, in words: "gradient 2 to a". */
export function sends(effects: PeerEffect[]): string[] {
  return framesOf(effects).map((frame) => `${frame.kind} ${frame.microBatch} to ${frame.to}`);
}

/** Jobs that were begun. */
export function jobsOf(effects: PeerEffect[]): Job[] {
  return effects.flatMap((effect) => effect.do === "job" ? [effect.job] : []);
}

/** A state file of a stage, as the coordinator announces it. */
export function stateFile(stage: number, hash = "state"): StateFile {
  return {
    stage,
    firstLayer: stage,
    endLayer: stage + 1,
    embed: stage === 0,
    head: stage === 1,
    bytes: 9,
    hash,
  };
}
