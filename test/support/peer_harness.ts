// A peer's core with a view of two stages of two replicas each, fed by hand: for unit tests of fencing and of the order of
// things. Jobs are finished by the test; nothing is computed.
import assert from "node:assert/strict";
import { PeerCore } from "../../peer/core/peer_core.ts";
import type { Job, JobResult, PeerEffect, PeerEvent } from "../../peer/core/peer_state.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, splitLayers, stageLayout } from "../../peer/model/layout.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { FrameHeader } from "../../peer/wire/frame.ts";
import type { RunConfig, View } from "../../peer/wire/run.ts";

export const GEN = 5;
const VOCABULARY = 7;

export function tinyConfig(changes: Record<string, unknown> = {}): RunConfig {
  return readConfig({
    ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 4, batch_size: 2 },
    ...{ gradient_accumulation_steps: 4, max_iters: 10, warmup_iters: 0, eval_iters: 6 },
    ...{ codec_forward: "i8b64", codec_backward: "f16s", ...changes },
  });
}

/** Stage 0 on a (0, 2) and b (1, 3), stage 1 on c (0, 2) and d (1, 3), and a shadow of stage 1 on e. */
export function tinyView(config: RunConfig, changes: Partial<View> = {}): View {
  const spec = specOf(config, VOCABULARY);
  const holders = [["a", "b"], ["c", "d"]];
  const stages = splitLayers(spec, [1, 1]).map((stage, s) => ({
    ...stage,
    inflight: 4,
    replicas: [
      ...holders[s]!.map((peer, r) => ({ peer, microBatches: [r, r + 2] })),
      ...(s === 1 ? [{ peer: "e", microBatches: [] }] : []),
    ],
  }));
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  return { gen: GEN, baseStep: 0, stages, schedule: config.schedule, ...codecs, ...changes };
}

export class PeerHarness {
  readonly core: PeerCore;
  readonly config: RunConfig;
  readonly view: View;

  constructor(id: string, changes: Record<string, unknown> = {}) {
    this.config = tinyConfig(changes);
    this.core = new PeerCore(id, this.config, specOf(this.config, VOCABULARY));
    this.view = tinyView(this.config);
  }

  /** A peer that has loaded the view, has all its links, and in which a training round is open. */
  static inRound(id: string, changes: Record<string, unknown> = {}): PeerHarness {
    const peer = new PeerHarness(id, changes);
    peer.load();
    peer.step({ type: "open", gen: GEN, step: 0, pass: "train" });
    return peer;
  }

  get state() {
    return this.core.state;
  }

  step(event: PeerEvent): PeerEffect[] {
    return this.core.step(event);
  }

  load(): PeerEffect[] {
    this.step({ type: "view", view: this.view, source: null });
    const effects = this.finish();
    for (const peer of this.state.neighbours) {
      effects.push(...this.step({ type: "link", peer, open: true, reason: "" }));
    }
    return effects;
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
  header(kind: FrameHeader["kind"], changes: Partial<FrameHeader> = {}): FrameHeader {
    const { config, state, view } = this;
    const own = view.stages.find((it) => it.replicas.some((r) => r.peer === state.id))!;
    const toStage = own.index;
    const base = { gen: GEN, step: state.committed, incarnation: 1, toStage, microBatch: 0, exponent: 0 };
    const boundary = { rows: config.batch_size * config.block_size, cols: config.n_embd, set: [] };
    const sum = { codec: "int32" as const, rows: 1, fromStage: toStage };
    const kinds = {
      activation: { ...boundary, codec: config.codec_forward, fromStage: toStage - 1 },
      gradient: { ...boundary, codec: config.codec_backward, fromStage: toStage + 1 },
      part: { ...sum, cols: stageLayout(state.spec, own).size, set: [1, 3] },
      tied: { ...sum, fromStage: 1 - toStage, cols: VOCABULARY * config.n_embd, set: [0, 1, 2, 3] },
    };
    return { kind, pass: "train", ...base, ...kinds[kind], ...changes };
  }

  /** True if the frame was accepted; the payload is kept exactly then. */
  frame(from: string, header: FrameHeader): boolean {
    const { fenced } = this.state;
    const effects = this.step({ type: "frame", from, header });
    const kept = effects.some((effect) => effect.do === "keep");
    assert.equal(this.state.fenced, fenced + (kept ? 0 : 1), "a refused frame was not counted");
    return kept;
  }
}

export function said(effects: PeerEffect[]): PeerMessage[] {
  return effects.flatMap((effect) => effect.do === "say" ? [effect.message] : []);
}
