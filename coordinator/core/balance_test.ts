// The plan of a live run in the loop with a virtual swarm: who becomes slow gets less, noise moves nothing, who joins is put where
// it helps, and what was promised is compared with what came of it.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import { VirtualSwarm } from "../../test/support/virtual_swarm.ts";
import { peersOf } from "../../peer/wire/view.ts";

/** A step of a few virtual seconds: layers are worth moving within a minute. */
const PIPELINE = {
  ...{ n_layer: 12, n_embd: 32, n_inner: 32, block_size: 32, batch_size: 4, gradient_accumulation_steps: 16 },
  ...{ max_iters: 2000, lr_decay_iters: 2000 },
};

function equal(count: number, blockMs: number) {
  return Array.from({ length: count }, (_, i) => ({ id: `p${i}`, blockMs }));
}

function layersOf(swarm: VirtualSwarm): Record<string, number> {
  return Object.fromEntries(
    swarm.state.view!.stages.map((stage) => [stage.replicas[0]!.peer, stage.endLayer - stage.firstLayer]),
  );
}

Deno.test("balance: a lone holder three times slower gives layers away: 85 % of the new optimum within 60 virtual seconds", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 4 }, peers: equal(4, 20) });
  swarm.train({ steps: 8 });
  const { cut } = swarm.run;
  swarm.slowdown["p2"] = 3;
  const since = swarm.now;
  swarm.train({ steps: 1 });
  const slow = swarm.steps.at(-1)!.took;
  // The last step, too, ends within the minute.
  swarm.train({ seconds: 60 - 2 * slow });
  assert.ok(swarm.now - since < 60);
  const { stepSeconds, optimum } = swarm;
  assert.ok(optimum < 0.8 * slow, `nothing to gain: ${slow} s, at best ${optimum} s`);
  assert.ok(optimum >= 0.85 * stepSeconds, `${stepSeconds} s per step, at best ${optimum} s`);
  assert.equal(swarm.run.cut > cut, true, "layers moved without a new cut");
  assert.ok(layersOf(swarm)["p2"]! < 3, JSON.stringify(layersOf(swarm)));
  assert.ok(swarm.told.some((text) => /^p2 takes 3\.0 times as long/.test(text)), swarm.told.join("\n"));
  assert.equal(swarm.state.stepsRedone, 0);
});

Deno.test("balance: steps that overlap are looked at as well, and the pipeline runs empty once to move layers", () => {
  const config = { ...PIPELINE, n_stage: 4, schedule: "2bw", eval_interval: 1000, snapshot_interval: 1000 };
  const swarm = new VirtualSwarm({ config, peers: equal(4, 20) });
  swarm.train({ steps: 8 });
  const { cut } = swarm.run;
  assert.equal(swarm.state.round?.ahead, true);
  swarm.slowdown["p2"] = 3;
  swarm.train({ steps: 12 });
  assert.ok(swarm.run.cut > cut, swarm.told.join("\n"));
  assert.ok(layersOf(swarm)["p2"]! < 3, JSON.stringify(layersOf(swarm)));
  assert.equal(swarm.state.round?.ahead, true, "steps overlap again");
  assert.equal(swarm.state.view!.schedule, "2bw");
  assert.equal(swarm.state.stepsRedone, 0);
});

Deno.test("balance: of two peers that mirror one another the slower gets fewer micro-batches in both stages, without a transfer", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 4 }, peers: equal(2, 20) });
  const shares = () =>
    swarm.state.view!.stages.map(({ replicas }) =>
      Object.fromEntries(replicas.map(({ peer, microBatches }) => [peer, microBatches.length]))
    );
  swarm.train({ steps: 6 });
  assert.deepEqual(shares(), [{ p0: 8, p1: 8 }, { p0: 8, p1: 8 }]);
  const { cut } = swarm.run;
  swarm.slowdown["p1"] = 3;
  swarm.train({ steps: 10 });
  assert.deepEqual(shares(), [{ p0: 12, p1: 4 }, { p0: 12, p1: 4 }], swarm.told.join("\n"));
  assert.equal(swarm.run.cut, cut);
  assert.match(swarm.told.join("\n"), /^Micro-batches are dealt out anew\./m);
  assert.ok(swarm.stepSeconds < 1.15 * swarm.optimum, `${swarm.stepSeconds} s, at best ${swarm.optimum} s`);
});

Deno.test("balance: who was left out for being slow is tried again after a while, and stays if it is quick", () => {
  const config = {
    ...PIPELINE,
    n_stage: 2,
    gradient_accumulation_steps: 4,
    shadows: false,
    eval_interval: 100_000,
  };
  const swarm = new VirtualSwarm({ config, peers: equal(3, 100) });
  const works = (id: string) =>
    swarm.state.view!.stages.some(({ replicas }) =>
      replicas.some(({ peer, microBatches }) => peer === id && microBatches.length > 0)
    );
  swarm.train({ steps: 5 });
  assert.ok(works("p2"));
  swarm.slowdown["p2"] = 20;
  swarm.train({ steps: 20 });
  assert.ok(!works("p2"), "twenty times as slow, and still in the way");
  swarm.slowdown["p2"] = 1;
  swarm.train({ seconds: 500 });
  assert.ok(!works("p2"), "nobody knows");
  swarm.train({ seconds: 200 });
  assert.ok(works("p2"), swarm.told.slice(-5).join("\n"));
  assert.equal(swarm.state.stepsRedone, 0);
});

Deno.test("balance: a slow replica gets fewer micro-batches at once, without a transfer, and the gain is told in truth", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 1 }, peers: equal(2, 50) });
  swarm.train({ steps: 6 });
  const { cut } = swarm.run;
  swarm.slowdown["p1"] = 3;
  swarm.train({ steps: 10 });
  const shares = swarm.state.view!.stages[0]!.replicas.map((it) => it.microBatches.length);
  assert.deepEqual([shares, swarm.run.cut], [[12, 4], cut]);
  swarm.train({ steps: 4 });
  const gained = swarm.told.at(-1)!;
  assert.match(
    gained,
    /^Micro-batches are dealt out anew: a step now takes 7\.\d+ s, 7\.\d+ s were expected, 14\.\d s before\.$/,
  );
  assert.deepEqual(swarm.state.planning.changes.at(-1), gained);
});

Deno.test("balance: noise of 20 % on every operation changes nothing in 100 steps", () => {
  for (const [seed, n_stage] of [[1, 3], [2, 1], [3, 0]] as const) {
    const config = { ...PIPELINE, n_stage, gradient_accumulation_steps: 8 };
    const swarm = new VirtualSwarm({ config, peers: equal(3, 30), seed, noise: 0.2 });
    swarm.train({ steps: 3 });
    const { gen } = swarm.run;
    swarm.train({ steps: 100 });
    assert.equal(swarm.run.gen, gen, swarm.told.join("\n"));
  }
});

Deno.test("balance: what slows everybody down is believed and moves nobody", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 3 }, peers: equal(3, 30) });
  swarm.train({ steps: 5 });
  const { gen } = swarm.run;
  for (const id of ["p0", "p1", "p2"]) swarm.slowdown[id] = 2.5;
  swarm.train({ steps: 20 });
  assert.equal(swarm.run.gen, gen);
});

Deno.test("balance: speeds that were never measured in training are believed after three steps, so the prediction is right", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 3 }, peers: equal(3, 30) });
  for (const id of ["p0", "p1", "p2"]) swarm.slowdown[id] = 1.4;
  swarm.train({ steps: 5 });
  const { plan } = swarm.run.core.state.planning;
  assert.ok(plan!.seconds < 0.8 * swarm.stepSeconds);
  assert.deepEqual(Object.values(swarm.state.peers).map((peer) => Math.round(10 * peer.slowdown!)), [
    14,
    14,
    14,
  ]);
});

Deno.test("balance: a peer that joins shortens the step, and the run says by how much", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 0 }, peers: equal(2, 100) });
  swarm.train({ steps: 5 });
  const before = swarm.stepSeconds;
  swarm.join({ id: "late", blockMs: 100 });
  swarm.train({ steps: 14 });
  assert.ok(peersOf(swarm.state.view!).includes("late"), swarm.run.layout().join());
  assert.ok(swarm.stepSeconds < 0.8 * before, `${before} s before, ${swarm.stepSeconds} s now`);
  assert.match(swarm.told.at(-1)!, /: a step now takes .* s were expected, .* s before\.$/);
  assert.equal(swarm.state.stepsRedone, 0);
});

/** Sums of 4 million parameters take longer than a pipeline of two. */
const HEAVY = {
  ...{ n_head: 4, n_embd: 256, n_inner: 1024, n_layer: 4, gradient_accumulation_steps: 8 },
  ...{ max_iters: 1000, lr_decay_iters: 1000 },
};

Deno.test("balance: peers that suit more stages bring a new cut, from everything that is committed", () => {
  const run = RunHarness.training(["a"], { ...HEAVY, n_stage: 0 });
  run.join("b");
  run.commit();
  assert.equal(run.state.phase, "handover");
  run.store();
  assert.deepEqual([run.state.view!.stages.length, run.state.view!.baseStep], [2, 1]);
  assert.equal(run.cut, run.gen, "a cut begins with its generation");
  assert.match(
    run.state.events.findLast((event) => event.kind === "plan")!.text,
    /^a step should take 0\.17/,
  );
});

Deno.test("balance: near its end a run is not cut anew for what it could no longer earn back", () => {
  const run = RunHarness.training(["a"], { ...HEAVY, n_stage: 0, max_iters: 60, lr_decay_iters: 60 });
  run.join("b");
  run.commit();
  assert.deepEqual([run.state.phase, run.state.replanDue], ["round", null]);
});

Deno.test("balance: after a new cut the next one waits for half a minute, and is then made", () => {
  const run = RunHarness.training(["a"], { ...HEAVY, n_layer: 6, n_stage: 0 });
  run.join("b");
  run.commit();
  run.store();
  run.ready();
  const { cut } = run;
  run.join("c");
  run.commit();
  assert.deepEqual([run.state.replanDue, run.cut], [null, cut]);
  assert.equal(run.state.planning.balancer.pending, true);
  for (const { peer, stage } of [...run.state.transfers]) run.learn(peer, stage);
  run.pass(31_000, ["a", "b", "c"]);
  for (let i = 0; i < 3 && run.state.phase === "round"; i++) run.commit();
  assert.equal(run.state.phase, "handover");
});

Deno.test("balance: while somebody learns, wants to go or is paused, the plan is let be", () => {
  const run = RunHarness.training(["a"], { ...HEAVY, n_stage: 1 });
  run.join("b");
  run.say("a", { type: "pause", paused: true });
  run.commit();
  assert.equal(run.state.planning.balancer.pending, true);
  assert.equal(run.state.replanDue, null);
});

Deno.test("balance: a tab that goes to the background gives micro-batches away", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 1 }, peers: equal(2, 50) });
  swarm.train({ steps: 3 });
  swarm.hidden.add("p1");
  swarm.train({ steps: 1 });
  const shares = swarm.state.view!.stages[0]!.replicas.map((it) => it.microBatches.length);
  assert.ok(shares[1]! < shares[0]!, shares.join());
  // That it is as quick as before is no reason to believe that it is twice as quick.
  swarm.train({ steps: 12 });
  assert.deepEqual(swarm.state.view!.stages[0]!.replicas.map((it) => it.microBatches.length), shares);
  assert.equal(swarm.state.peers["p1"]!.slowdown!.toFixed(2), "1.00");
});

Deno.test("balance: a boundary that is asked twice is looked at once", () => {
  const swarm = new VirtualSwarm({ config: { ...PIPELINE, n_stage: 1 }, peers: equal(2, 50) });
  swarm.train({ steps: 6 });
  swarm.slowdown["p1"] = 3;
  for (let i = 0; i < 20 && swarm.state.planning.promised === null; i++) swarm.train({ steps: 1 });
  swarm.train({ steps: 1 });
  const { took } = swarm.state.planning.promised!;
  assert.equal(took.length, 1);
  swarm.run.feed({ type: "admin", action: "pause" });
  swarm.train({ steps: 1 });
  for (const action of ["resume", "pause", "resume"] as const) swarm.run.feed({ type: "admin", action });
  assert.equal(took.length, 2);
});

Deno.test("balance: links that turn out slow bring another cut, once they were measured", () => {
  const config = {
    ...{ ...PIPELINE, n_embd: 64, n_inner: 256, n_head: 4, block_size: 16, batch_size: 1 },
    ...{ n_stage: 0, shadows: false },
  };
  const swarm = new VirtualSwarm({ config, peers: equal(2, 30) });
  swarm.train({ steps: 5 });
  assert.deepEqual(swarm.run.layout().length, 1, "the sums of two replicas are thought to travel quickly");
  swarm.links = { rttMs: 20, upBytesPerS: 1e5 };
  swarm.train({ steps: 1 });
  const before = swarm.stepSeconds;
  swarm.train({ steps: 5 });
  assert.equal(swarm.run.layout().length, 2, swarm.told.join("\n"));
  assert.ok(swarm.stepSeconds < 0.7 * before, `${before} s before, ${swarm.stepSeconds} s now`);
  const { cut } = swarm.run;
  swarm.train({ steps: 30 });
  assert.equal(swarm.run.cut, cut, "and that is all");
});
