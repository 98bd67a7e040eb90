// What the coordinator makes of peers' figures: per layer with the head's work, only of the present cut, links from both ends.
import assert from "node:assert/strict";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { LinkFigures, StageTimes } from "../../peer/wire/measures.ts";
import type { RecomputeId, StagePlan } from "../../peer/wire/run.ts";
import { headWork } from "../plan/planner_shares.ts";
import { createRunState } from "./create.ts";
import { takeMeasures } from "./measures.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";

const config = readConfig({ n_layer: 6, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 12, block_size: 4 });
const spec = specOf(config, 11);

function stage(
  index: number,
  layers: [number, number],
  peer: string,
  recompute: RecomputeId = "none",
): StagePlan {
  const [firstLayer, endLayer] = layers;
  return {
    ...{
      index,
      firstLayer,
      endLayer,
      embed: index === 0,
      head: endLayer === spec.n_layer,
      inflight: 1,
      recompute,
    },
    replicas: [{ peer, microBatches: [0, 1] }, { peer: "shadow", microBatches: [] }],
  };
}

function stateOf(stages: StagePlan[]): RunCoreState {
  const s = createRunState(config, spec);
  const rest = { schedule: "dynamic", codecForward: "raw32", codecBackward: "raw32" } as const;
  s.view = { gen: 5, cut: 4, baseStep: 0, stages, ...rest };
  for (const id of ["a", "b", "shadow"]) s.peers[id] = { id, heardAt: 7 } as PeerRecord;
  return s;
}

function beat(changes: { ops?: StageTimes[]; links?: LinkFigures[] }) {
  return { type: "heartbeat", ...changes } as PeerMessage & { type: "heartbeat" };
}

function times(changes: Partial<StageTimes> = {}): StageTimes {
  const ms = { forwardMs: 6, backwardMs: 12, weightGradMs: 9, waitMs: 1 };
  return { cut: 4, stage: 0, microBatches: 20, ...ms, ...changes };
}

Deno.test("measures: what coding takes belongs to a stage's boundaries, not to its layers", () => {
  const s = stateOf([stage(0, [0, 2], "a"), stage(1, [2, 4], "b"), stage(2, [4, 6], "a")]);
  const coding = { decodeMs: 0.5, encodeMs: 1.5, sendMs: 0.25 };
  takeMeasures(s, s.peers["a"]!, beat({ ops: [times(coding)] }));
  // One boundary: F and B have a millisecond of it each, over two layers.
  assert.deepEqual(s.peers["a"]!.opMs, { forward: 2.5, backward: 5.5, weightGrad: 4.5 });
  assert.deepEqual([s.peers["a"]!.codingMs, s.peers["a"]!.sendMs], [2, 0.25]);
  takeMeasures(s, s.peers["b"]!, beat({ ops: [times({ stage: 1, ...coding })] }));
  assert.deepEqual([s.peers["b"]!.codingMs, s.peers["b"]!.sendMs], [1, 0.125]);
  takeMeasures(s, s.peers["b"]!, beat({ ops: [times({ stage: 1 })] }));
  assert.equal(s.peers["b"]!.codingMs, 1, "figures that are not told leave the former");
});

Deno.test("measures: a stage's times per layer, and of a micro-batch", () => {
  const s = stateOf([stage(0, [0, 3], "a"), stage(1, [3, 6], "b")]);
  takeMeasures(s, s.peers["a"]!, beat({ ops: [times()] }));
  assert.deepEqual(s.peers["a"]!.opMs, { forward: 2, backward: 4, weightGrad: 3 });
  assert.equal(s.peers["a"]!.microBatchMs, 27);
});

Deno.test("measures: the head counts by its work, two stages together, what is computed again is no part of B", () => {
  const s = stateOf([stage(0, [0, 2], "a", "block"), stage(1, [2, 4], "b"), stage(2, [4, 6], "a")]);
  const ops = [times({ forwardMs: 4, backwardMs: 10 }), times({ stage: 2, forwardMs: 8 })];
  takeMeasures(s, s.peers["a"]!, beat({ ops }));
  const work = 4 + headWork(spec);
  const { forward, backward, weightGrad } = s.peers["a"]!.opMs!;
  assert.equal(forward, 12 / work);
  assert.equal(backward, (10 - 4 + 12) / work);
  assert.equal(weightGrad, 18 / work);
  assert.equal(s.peers["a"]!.microBatchMs, 4 + 10 + 9 + 8 + 12 + 9);
});

Deno.test("measures: another cut, a stage it does not compute, and the first few micro-batches are no measure", () => {
  const s = stateOf([stage(0, [0, 3], "a"), stage(1, [3, 6], "b")]);
  const probe = { forward: 1, backward: 1, weightGrad: 1 };
  s.peers["a"]!.opMs = probe;
  const strangers = [times({ cut: 3 }), times({ stage: 1 }), times({ stage: 9 })];
  takeMeasures(s, s.peers["a"]!, beat({ ops: strangers }));
  takeMeasures(s, s.peers["shadow"]!, beat({ ops: [times()] }));
  assert.deepEqual([s.peers["a"]!.ops, s.peers["shadow"]!.ops], [[], []]);
  takeMeasures(s, s.peers["a"]!, beat({ ops: [times({ microBatches: 3 })] }));
  assert.deepEqual([s.peers["a"]!.opMs, s.peers["a"]!.microBatchMs], [probe, undefined]);
  assert.equal(s.peers["a"]!.ops!.length, 1, "it is shown all the same");
  s.view!.stages[1]!.replicas.push({ peer: "a", microBatches: [2] });
  takeMeasures(s, s.peers["a"]!, beat({ ops: [times(), times({ stage: 1, microBatches: 1 })] }));
  assert.equal(s.peers["a"]!.opMs, probe, "half of its stages are not all of them");
});

Deno.test("measures: a link's rate down is the other end's rate up; what was known outlives the link", () => {
  const s = stateOf([stage(0, [0, 3], "a"), stage(1, [3, 6], "b")]);
  const link = (peer: string, upBytesPerS: number): LinkFigures => ({
    peer,
    rttMs: 20,
    upBytesPerS,
    path: "direct",
  });
  const [a, b] = [s.peers["a"]!, s.peers["b"]!];
  takeMeasures(s, a, beat({ links: [link("b", 5e6), link("gone", 1), link("a", 1)] }));
  const known = { rttMs: 20, path: "direct", open: true, at: 7 } as const;
  assert.deepEqual(a.links, { b: { ...known, upBytesPerS: 5e6, downBytesPerS: 0 } });
  takeMeasures(s, b, beat({ links: [link("a", 2e6)] }));
  assert.deepEqual(b.links, { a: { ...known, upBytesPerS: 2e6, downBytesPerS: 5e6 } });
  takeMeasures(s, a, beat({ links: [link("b", 0)] }));
  assert.deepEqual(
    a.links,
    { b: { ...known, upBytesPerS: 5e6, downBytesPerS: 2e6 } },
    "a new link knows no rate yet",
  );
  takeMeasures(s, a, beat({ links: [link("b", 6e6)] }));
  assert.equal(b.links!["a"]!.downBytesPerS, 6e6, "the other end has to speak first");
  takeMeasures(s, b, beat({ links: [] }));
  assert.deepEqual(b.links!["a"]!.open, false);
  takeMeasures(s, b, beat({}));
  assert.equal(Object.keys(b.links!).length, 1, "a heartbeat without links says nothing of them");
  delete s.peers["a"];
  takeMeasures(s, b, beat({ links: [] }));
  assert.deepEqual(b.links, {});
});
