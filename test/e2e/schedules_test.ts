// A published schedule with everything real: Chimera's two pipelines over tabs and Deno processes with WebGPU. Ten steps, each
// peer in its own order, the losses of the one-process run, the same state at both holders of each stage; and when a peer
// goes, its mirror goes on from the same step.
import assert from "node:assert/strict";
import { loadCorpus } from "../../coordinator/store/corpus.ts";
import { specOf } from "../../peer/model/layout.ts";
import { placedOf } from "../../peer/schedule/placed.ts";
import { runOneProcess } from "../support/one_process.ts";
import { startSwarm } from "./swarm_support.ts";

const STEPS = 10;
/** f32 kernels of two compilers against the double-precision engine, after ten steps of AdamW; nats. */
const TOLERANCE = 2e-3;

const CHIMERA = {
  ...{ schedule: "chimera", n_layer: 4, min_peers: 4, gradient_accumulation_steps: 4, batch_size: 2 },
  ...{ codec_forward: "raw32", codec_backward: "raw32", reduce: "raw32", warmup_iters: 2, sample_chars: 0 },
  ...{ eval_interval: 1000, snapshot_interval: 1000, parity: false },
};

Deno.test("chimera on two tabs and two Deno peers: ten steps with the one-process run's losses, then the loss of a tab", async () => {
  await using swarm = await startSwarm(CHIMERA);
  const core = swarm.coordinator.shell.core.state;
  swarm.startPeer();
  swarm.startPeer();
  const tabs = [await swarm.openTab(), await swarm.openTab()];
  for (const tab of tabs) await tab.getByRole("button", { name: /lend this computer/i }).click();
  await swarm.until("10 steps", () => swarm.step() >= STEPS);
  const placed = placedOf(core.view!);
  assert.equal(placed?.schedule.name, "chimera");
  assert.deepEqual(core.view!.stages.map((stage) => stage.replicas.length), [2, 2, 2, 2]);
  const engines = Object.values(core.peers).map(({ engine }) => engine);
  assert.ok(engines.every((engine) => engine.startsWith("wgsl")), engines.join(", "));
  assert.equal(core.cutBase, 0, "one cut from the first step on");
  assert.ok(core.agreements >= 4 * (STEPS - 1), `holders agreed ${core.agreements} times`);
  assert.equal(core.events.filter((event) => event.kind === "evict").length, 0);

  const corpus = await loadCorpus(core.config.dataset);
  const config = { ...core.config, max_iters: STEPS };
  const expected = await runOneProcess(config, specOf(config, corpus.vocab.length), corpus.tokens);
  const losses = swarm.lines.flatMap((line) => line.event === "step" ? [line["train/loss"]] : []);
  expected.losses.forEach((loss, step) => {
    assert.ok(
      Math.abs(losses[step]! - loss) < TOLERANCE,
      `step ${step + 1}: ${losses[step]} against ${loss}`,
    );
  });

  await tabs[1]!.close();
  await swarm.until("the loss of a tab", () => core.departures.length > 0);
  const before = swarm.step();
  await swarm.until("3 more steps", () => swarm.step() >= before + 3);
  assert.equal(core.stepsRedone, 0, "the mirror had everything");
  assert.equal(core.snapshots.length, 0);
});
