// Placed schedules as peers run them, played by the simulator: the papers' bubbles where a backward is one operation, less where
// the input gradient goes on before W, and the two predictions of a live run.
import assert from "node:assert/strict";
import { placedView } from "../../test/support/placed_view.ts";
import { drawSwarm } from "../../test/support/swarm_requests.ts";
import { RunHarness } from "../../test/support/run_harness.ts";
import { predictPipelineMs } from "../core/predict_step.ts";
import { predictedStep } from "../core/planning.ts";
import { placedStep, simulatePlaced } from "./placed_step.ts";
import { CostModel } from "./planner_model.ts";

const NO_LINKS = { latency: () => 0, transfer: () => 0 };

Deno.test("placed step: Chimera's bubble at N = D is the paper's if a backward is one operation, and smaller if it is two", () => {
  for (const D of [4, 6, 8]) {
    const view = placedView({ schedule: "chimera", P: D, N: D });
    const whole = simulatePlaced(view, { op: (_, __, kind) => ({ F: 1, B: 2, W: 0 })[kind], ...NO_LINKS })!;
    assert.ok(Math.abs(whole.bubble - (D - 2) / (1.5 * D + D - 2)) < 1e-12, `D = ${D}: ${whole.bubble}`);
    const split = simulatePlaced(view, { op: () => 1, ...NO_LINKS })!;
    assert.ok(split.makespan < whole.makespan);
  }
});

Deno.test("placed step: links cost what they cost on the way of each pipeline, and stages of one peer nothing", () => {
  const view = placedView({ schedule: "zb-v", P: 2, N: 1 });
  const links: string[] = [];
  const simulation = simulatePlaced(view, {
    op: () => 1,
    latency: (from, to) => {
      links.push(`${from}>${to}`);
      return 10;
    },
    transfer: () => 5,
  })!;
  // Stages 1 and 2 are one peer's: there and back twice, four F and four B, the W of stage 2 before the B of stage 1, the last W.
  assert.equal(simulation.makespan, 4 + 4 + 4 * 15 + 2);
  assert.deepEqual(links.toSorted(), ["p0>p1", "p0>p1", "p1>p0", "p1>p0"]);
});

Deno.test("placed step: a run's step is predicted by its own order, and by the dynamic one once that is lost", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], {
    ...{ n_layer: 4, gradient_accumulation_steps: 4, schedule: "chimera" },
  });
  assert.equal(predictPipelineMs(run.state), null, "nothing was measured");
  for (const peer of Object.values(run.state.peers)) {
    peer.opMs = { forward: 10, backward: 10, weightGrad: 10 };
  }
  const inOrder = predictPipelineMs(run.state)!;
  // 14 operations of 10 ms on each peer, of which the two with the head take a little longer.
  assert.ok(inOrder > 140 && inOrder < 160, `${inOrder} ms`);
  const planned = predictedStep(run.state)!;
  assert.ok(planned.seconds > 0 && planned.bubble > 0 && planned.bubble < 1);
  run.gone("a");
  const alone = predictPipelineMs(run.state)!;
  assert.ok(alone > 1.5 * inOrder, `${alone} ms with one peer for two`);
});

Deno.test("placed step: a peer in two stages sends the sums of both over one uplink", () => {
  const drawn = drawSwarm({
    peers: 2,
    seed: 1,
    config: { n_layer: 4, block_size: 2, batch_size: 1 },
    rate: [1e4, 1e4],
  });
  const request = { ...drawn, commitSeconds: 0 };
  const view = placedView({ schedule: "chimera", P: 2, N: 2 });
  const ids = request.peers.map(({ id }) => id);
  const stages = view.stages.map((stage) => ({
    ...stage,
    replicas: stage.replicas.map((it) => ({ ...it, peer: ids[Number(it.peer.slice(1))]! })),
  }));
  const model = new CostModel(request);
  const sync = Math.max(
    ...stages.map(({ firstLayer, endLayer }) => model.syncSeconds([0, 1], firstLayer, endLayer)),
  );
  const { seconds } = placedStep(request, { ...view, stages })!;
  assert.ok(seconds > 2 * sync && seconds < 2.5 * sync, `${seconds} s, one stage's sums ${sync} s`);
});
