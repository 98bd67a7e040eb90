// A preview names every transfer with its source, bytes and time, and says what a step gains.
import assert from "node:assert/strict";
import fc from "fast-check";
import { baseSpec, stageLayout } from "../../peer/model/layout.ts";
import { diffPlans, heldBy, STATE_BYTES_PER_PARAM, stateBytes } from "./plan_diff.ts";
import { plan as planFor } from "./planner.ts";
import { drawSwarm, equalPeers } from "../../test/support/swarm_requests.ts";
import type { Plan, PlannedStage, PlanRequest } from "./planner_types.ts";

function planOf(request: PlanRequest): Plan {
  const answer = planFor(request);
  assert.ok(answer.kind === "plan");
  return answer;
}

const request = equalPeers([9, 9, 9], { gradient_accumulation_steps: 8 });

/** A plan by hand: per stage its end, who computes, who shadows. */
function byHand(seconds: number, ...stages: [end: number, replicas: string[], shadows?: string[]][]): Plan {
  let firstLayer = 0;
  const planned = stages.map(([endLayer, replicas, shadows = []], index): PlannedStage => {
    const stage: PlannedStage = {
      ...{ index, firstLayer, endLayer, embed: firstLayer === 0, head: endLayer === 4 },
      ...{ shadows, inflight: 2, recompute: "none", bytes: 1 },
      replicas: replicas.map((peer, i) => ({
        ...{ peer, engine: "wgsl" },
        microBatches: [0, 1, 2, 3, 4, 5, 6, 7].filter((m) => m % replicas.length === i),
      })),
    };
    firstLayer = endLayer;
    return stage;
  });
  return { ...planOf(request), stages: planned, seconds };
}

Deno.test("a layer over a boundary: one transfer, from the holder, at the link's rate", () => {
  const diff = diffPlans(byHand(2, [2, ["id0"]], [4, ["id1"]]), byHand(1.5, [3, ["id0"]], [4, ["id1"]]), {
    request,
  });
  const middle = { index: 0, firstLayer: 2, endLayer: 3, embed: false, head: false };
  const bytes = stageLayout(request.spec, middle).size * STATE_BYTES_PER_PARAM;
  assert.equal(stateBytes(request.spec, middle), bytes);
  const seconds = 0.01 + bytes / 5e6;
  assert.deepEqual(diff.transfers, [{
    peer: "id0",
    from: "id1",
    firstLayer: 2,
    endLayer: 3,
    bytes,
    seconds,
  }]);
  assert.deepEqual([diff.bytes, diff.seconds, diff.before, diff.after], [bytes, seconds, 2, 1.5]);
  assert.deepEqual(diff.stages, [0, 1]);
  assert.equal(diff.paysAfter, Math.ceil(seconds / 0.5));
  assert.match(diff.sentences[0]!, /^tab 1 fetches layer 2 \(\d+ MB\) from tab 2, about .* s\.$/);
  assert.match(diff.sentences[1]!, /2\.00 s before, 1\.50 s after\. It has paid for itself after 1 step\.$/);
});

Deno.test("what a shadow holds already travels nowhere", () => {
  const former = byHand(2, [2, ["id0"], ["id2"]], [4, ["id1"]]);
  const diff = diffPlans(former, byHand(1, [2, ["id0", "id2"]], [4, ["id1"]]), { request });
  assert.deepEqual([diff.transfers, diff.bytes, diff.stages, diff.paysAfter], [[], 0, [0], 0]);
  assert.match(diff.sentences.at(-1)!, /It costs no transfer/);
});

Deno.test("a holder that serves two sends one after the other; one who is gone serves nobody", () => {
  const former = byHand(2, [4, ["id0"]]);
  const both = diffPlans(former, byHand(1, [4, ["id0", "id1", "id2"]]), { request });
  assert.equal(both.transfers.length, 2);
  assert.ok(Math.abs(both.transfers[1]!.seconds - 2 * both.transfers[0]!.seconds) < 1e-9);
  const gone = { ...request, peers: request.peers.slice(1) };
  const orphaned = diffPlans(former, byHand(1, [4, ["id1"]]), { request: gone });
  assert.equal(orphaned.transfers[0]!.from, null);
  assert.match(orphaned.sentences[0]!, /from a snapshot, since nobody who stays holds them/);
});

Deno.test("a change for the worse never pays", () => {
  const diff = diffPlans(byHand(1, [2, ["id0"]], [4, ["id1"]]), byHand(2, [4, ["id0"]]), { request });
  assert.equal(diff.paysAfter, null);
  assert.match(diff.sentences.at(-1)!, /It does not pay/);
});

Deno.test("after its transfers every peer holds what the new plan asks of it, and nothing came twice", () => {
  const sizes = fc.record({
    seed: fc.nat(10_000),
    other: fc.nat(10_000),
    peers: fc.integer({ min: 2, max: 5 }),
  });
  fc.assert(
    fc.property(sizes, ({ seed, other, peers }) => {
      const shape = { peers, memory: [1, 5], config: { n_layer: 6, shadows: true } } as const;
      const asked = drawSwarm({ ...shape, seed });
      const [former, next] = [planOf(asked), planOf(drawSwarm({ ...shape, seed: other }))];
      const { transfers } = diffPlans(former, next, { request: asked });
      const layersOf = (ranges: { firstLayer: number; endLayer: number }[]) =>
        ranges.flatMap(({ firstLayer, endLayer }) =>
          Array.from({ length: endLayer - firstLayer }, (_, i) => firstLayer + i)
        );
      for (const [peer, wanted] of heldBy(next)) {
        const had = layersOf(heldBy(former).get(peer) ?? []);
        const got = layersOf(transfers.filter((transfer) => transfer.peer === peer));
        assert.equal(new Set(got).size, got.length, "a layer came twice");
        assert.ok(got.every((layer) => !had.includes(layer)), "a layer came that was there");
        assert.ok(layersOf(wanted).every((layer) => had.includes(layer) || got.includes(layer)));
      }
      for (const { from, firstLayer } of transfers) {
        assert.ok(layersOf(heldBy(former).get(from!) ?? []).includes(firstLayer), "from somebody without it");
      }
    }),
    { seed: 92, numRuns: 30 },
  );
});

Deno.test("with adapters the frozen weights of what moves are counted, too, and said to come from elsewhere", () => {
  const [former, next] = [byHand(2, [2, ["id0"]], [4, ["id1"]]), byHand(1.5, [3, ["id0"]], [4, ["id1"]])];
  const spec = { ...request.spec, lora: { rank: 2, alpha: 2, targets: ["q_proj" as const], base: "ab" } };
  const diff = diffPlans(former, next, { request: { ...request, spec } });
  const middle = { index: 0, firstLayer: 2, endLayer: 3, embed: false, head: false };
  assert.equal(diff.base, 4 * stageLayout(baseSpec(spec), middle).size);
  assert.equal(diff.bytes, diff.base + diff.transfers[0]!.bytes);
  assert.match(diff.sentences[1]!, /^The frozen weights of these layers \(.*MB\) come from the coordinator/);
  assert.deepEqual(diffPlans(former, former, { request: { ...request, spec } }).base, 0);
  assert.equal(diffPlans(former, next, { request }).base, 0);
});
