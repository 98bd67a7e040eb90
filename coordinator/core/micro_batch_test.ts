// The size of micro-batches in a run: decided at the first cut and at later ones, in the log like any change, undone and done again
// with the steps that it belongs to, and never a cut's reason.
import assert from "node:assert/strict";
import fc from "fast-check";
import { RunHarness } from "../../test/support/run_harness.ts";
import { VirtualSwarm } from "../../test/support/virtual_swarm.ts";
import { holderBytes, type StageRun } from "../../peer/model/stage_memory.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { holds, peersOf } from "../../peer/wire/view.ts";
import { roomOf } from "./fit.ts";
import { requestOf } from "./plan_request.ts";
import { previewReplan } from "./replan.ts";
import type { RunRecord } from "./run_record.ts";
import { metricsText } from "./metrics.ts";

const LINE = {
  ...{ n_layer: 4, n_embd: 32, n_inner: 32, block_size: 32, micro_batch: "auto", seed: 3 },
  ...{ batch_size: 8, gradient_accumulation_steps: 4, eval_iters: 4, max_iters: 400, lr_decay_iters: 400 },
};

/** With next to no fixed cost a line of four fills up with small micro-batches; where half is fixed, large ones pay. */
function swarmOf(fixedMs: number | undefined, config: Record<string, unknown> = {}, peers = 4): VirtualSwarm {
  const list = Array.from({ length: peers }, (_, i) => ({
    ...{ id: `p${i}`, blockMs: 40 },
    ...(fixedMs === undefined ? {} : { fixedMs }),
  }));
  return new VirtualSwarm({ config: { n_stage: peers, ...LINE, ...config }, peers: list });
}

function sizeOf({ batch_size, gradient_accumulation_steps, eval_iters }: RunConfig): string {
  return `${batch_size} x ${gradient_accumulation_steps}, ${eval_iters}`;
}

function sizeNow({ state }: VirtualSwarm | RunHarness): string {
  return sizeOf(state.config);
}

function configs(run: RunHarness) {
  return run.did("persist").flatMap(({ record }) => record.kind === "config" ? [record] : []);
}

Deno.test("micro-batch: the first cut decides, says why, and its view and the log carry the size", () => {
  const swarm = swarmOf(1);
  const { run, state } = swarm;
  assert.equal(sizeNow(swarm), "4 x 8, 8");
  assert.equal(sizeOf(state.view!.config!), "4 x 8, 8");
  const [first, ...rest] = configs(run);
  assert.equal(rest.length, 0);
  assert.deepEqual(first!.changes, [{
    ...{ step: 0, planned: true },
    set: { batch_size: 4, gradient_accumulation_steps: 8, eval_iters: 8 },
    was: { batch_size: 8, gradient_accumulation_steps: 4, eval_iters: 4 },
  }]);
  const kinds = run.did("persist").map(({ record }) => record.kind);
  assert.deepEqual(kinds, ["config", "view"], "in the log before its cut");
  assert.match(
    swarm.told[0]!,
    /^micro-batches have another size from step 0 on\. 4 sequences per micro-batch, 8 of them: \d\.\d+ s per step; 8 x 4 would take/,
  );
  assert.match(state.planning.plan!.reasons[0]!, /^4 sequences per micro-batch, 8 of them/);
  assert.match(
    metricsText(state),
    /shoal_micro_batches 8\n/,
  );
  assert.equal(state.peers.p0!.blockMs, 1 + 39 / 2, "times are told for the new size");
  const { spec, config, peers } = state;
  const { engines } = requestOf({ spec, config, peers: Object.values(peers) }).peers[0]!;
  assert.equal(engines[0]!.fixedShare, 1 / 20.5);
});

Deno.test("micro-batch: dear micro-batches become larger, and the run that was not asked keeps its own", () => {
  assert.equal(sizeNow(swarmOf(36, {}, 2)), "32 x 1, 1");
  assert.equal(sizeNow(swarmOf(1, { micro_batch: "fixed" })), "8 x 4, 4");
  assert.equal(sizeNow(swarmOf(undefined)), "8 x 4, 4", "nobody knows what another size would take");
});

Deno.test("micro-batch: a schedule with an order of its own has only sizes whose number of micro-batches it takes", () => {
  assert.equal(sizeNow(swarmOf(36)), "16 x 2, 2");
  const swarm = swarmOf(36, { schedule: "chimera" });
  assert.deepEqual([sizeNow(swarm), swarm.state.view!.schedule], ["8 x 4, 4", "chimera"]);
  // Six of these peers' micro-batches are not a multiple of four, eight are.
  const odd = swarmOf(1, {
    schedule: "chimera",
    batch_size: 4,
    gradient_accumulation_steps: 6,
    eval_iters: 6,
  });
  assert.deepEqual([sizeNow(odd), odd.state.view!.schedule], ["3 x 8, 8", "chimera"]);
});

Deno.test("micro-batch: who measured itself with the size before is told for the present one", () => {
  const swarm = swarmOf(1);
  swarm.run.join("new", { blockMs: 40, fixedMs: 1, sequences: 8 });
  swarm.run.join("newer", { blockMs: 20.5, fixedMs: 1, sequences: 4 });
  const { peers } = swarm.state;
  assert.deepEqual([peers.new!.blockMs, peers.newer!.blockMs], [20.5, 20.5]);
});

Deno.test("micro-batch: memory is a reason, whatever was measured", () => {
  const stage = { index: 0, firstLayer: 0, endLayer: 4, embed: true, head: true };
  const run = new RunHarness({ ...LINE, min_peers: 1, optimizer: "exact" });
  const bytes = (batch_size: number) =>
    holderBytes(stage, { slots: 1, recompute: "block" }, {
      ...{ spec: run.state.spec, kind: "cpu" as const, config: { ...run.state.config, batch_size } },
    });
  assert.ok(bytes(8) > 1.5 * bytes(4), `${bytes(8)} ${bytes(4)}`);
  run.join("a", { memoryBytes: 1.4 * bytes(4) });
  assert.equal(sizeNow(run), "4 x 8, 8");
  assert.match(run.state.events.find(({ text }) => /another size/.test(text))!.text, /8 x 4 cannot be had: /);
});

Deno.test("micro-batch: whatever peers come, what they hold fits, a step keeps its sequences, and none is predicted slower", () => {
  const peer = fc.record({
    blockMs: fc.integer({ min: 5, max: 80 }),
    share: fc.double({ min: 0, max: 1, noNaN: true }),
    memoryBytes: fc.integer({ min: 400_000, max: 4_000_000 }),
  });
  const peers = fc.array(peer, { minLength: 1, maxLength: 5 });
  let decided = 0;
  fc.assert(
    fc.property(peers, fc.constantFrom("dynamic", "auto", "gpipe", "chimera"), (list, schedule) => {
      const runs = ["auto", "fixed"].map((micro_batch) => {
        const run = new RunHarness({ ...LINE, micro_batch, schedule, min_peers: list.length, n_stage: 0 });
        for (const [i, { share, ...of }] of list.entries()) {
          run.join(`p${i}`, { ...of, fixedMs: share * of.blockMs });
        }
        return run.state;
      });
      const [{ view, config, spec, peers, planning }, fixed] = runs as [
        RunHarness["state"],
        RunHarness["state"],
      ];
      assert.equal(config.batch_size * config.gradient_accumulation_steps, 32);
      assert.ok(view !== null || fixed.view === null, "what fits with the size that is given fits");
      if (view === null) return;
      if (config.batch_size !== 8) decided++;
      for (const id of peersOf(view)) {
        const held: number[] = view.stages.filter((stage) => holds(stage, id)).map((stage) => {
          const run: StageRun = { slots: stage.inflight, recompute: stage.recompute ?? "none" };
          return holderBytes(stage, run, { spec, config, kind: "cpu" });
        });
        assert.ok(
          held.reduce((sum, bytes) => sum + bytes, 0) <= roomOf(peers[id]!),
          `${id} of ${sizeOf(config)}`,
        );
      }
      const [chosen, given] = [planning.plan, fixed.planning.plan];
      if (chosen === null || given === null) return;
      assert.ok(chosen.seconds <= given.seconds * (1 + 1e-9), `${chosen.seconds} ${given.seconds}`);
    }),
    { seed: 31, numRuns: 40 },
  );
  assert.ok(decided >= 10, `${decided}`);
});

Deno.test("micro-batch: a cut that peers cause decides anew, and no cut is made for the size alone", () => {
  const swarm = swarmOf(12, { n_stage: 2 }, 2);
  swarm.train({ steps: 3 });
  const before = sizeNow(swarm);
  const { gen } = swarm.run;
  swarm.train({ steps: 20 });
  assert.equal(swarm.run.gen, gen);
  for (let i = 2; i < 4; i++) swarm.join({ id: `p${i}`, blockMs: 40, fixedMs: 12 });
  swarm.train({ steps: 20 });
  swarm.run.feed({ type: "admin", action: "replan" });
  swarm.train({ steps: 2 });
  assert.ok(swarm.run.gen > gen);
  assert.notEqual(sizeNow(swarm), before);
  const { state } = swarm;
  assert.equal(state.config.batch_size * state.config.gradient_accumulation_steps, 32);
});

Deno.test("micro-batch: what the dry run shows is what the organizer gets", () => {
  const swarm = swarmOf(1, { micro_batch: "fixed" });
  swarm.train({ steps: 2 });
  swarm.run.feed({ type: "admin", action: "change", step: 2, set: { eval_interval: 999 } });
  // A change begins a cut, which decides; so the key alone is set here.
  swarm.state.config = { ...swarm.state.config, micro_batch: "auto" };
  const preview = previewReplan(swarm.state);
  assert.equal(
    preview.sentences[0],
    "A step has 4 of 8 sequences as micro-batches now and would have 8 of 4 sequences.",
  );
  assert.match(preview.reasons[0]!, /^4 sequences per micro-batch/);
  assert.equal(sizeNow(swarm), "8 x 4, 4", "a dry run changes nothing");
  swarm.run.feed({ type: "admin", action: "replan" });
  // What is measured meanwhile would lead to another plan, which was not shown.
  swarm.links = { rttMs: 60, upBytesPerS: 1e6 };
  swarm.train({ steps: 2 });
  assert.equal(sizeNow(swarm), "4 x 8, 8");
  assert.equal(swarm.state.planning.plan!.seconds, preview.after);
});

/** Four peers with a stage each, a state collected at step 2, four steps committed with micro-batches of four sequences. */
function trained(): RunHarness {
  const run = new RunHarness({ ...LINE, min_peers: 4, n_stage: 4, snapshot_interval: 2 });
  for (const id of ["a", "b", "c", "d"]) run.join(id, { blockMs: 40, fixedMs: 1 });
  run.ready();
  run.commit();
  run.commit();
  run.store();
  run.commit();
  assert.equal(run.state.committed, 3);
  assert.equal(sizeNow(run), "4 x 8, 8");
  return run;
}

Deno.test("micro-batch: a run that goes back does its steps again with the size that they had, and decides after them", () => {
  const run = trained();
  // All but everything is fixed cost from here on: whoever is left would rather have larger ones.
  for (const peer of Object.values(run.state.peers)) peer.fixedMs = peer.blockMs;
  run.gone("b");
  run.gone("d");
  assert.deepEqual([run.state.committed, run.state.planning.furthest], [2, 3]);
  assert.equal(sizeNow(run), "4 x 8, 8");
  run.ready();
  run.commit();
  assert.equal(run.state.committed, 3);
  run.feed({ type: "admin", action: "replan" });
  run.commit();
  run.store();
  assert.equal(sizeNow(run), "16 x 2, 2");
  assert.deepEqual(run.state.changes.map(({ step, set }) => [step, set.batch_size]), [[0, 4], [4, 16]]);
});

Deno.test("micro-batch: steps before a decision have the size before it when they are done again, and the decision comes again", () => {
  const run = trained();
  for (const peer of Object.values(run.state.peers)) peer.fixedMs = peer.blockMs;
  run.feed({ type: "admin", action: "replan" });
  run.commit();
  run.store();
  run.ready();
  run.commit();
  assert.deepEqual([run.state.committed, sizeNow(run)], [5, "16 x 2, 2"]);
  Object.assign(run.state, { snapshots: [], source: null });
  for (const id of run.members().slice(1)) run.gone(id);
  assert.deepEqual([run.state.committed, sizeNow(run)], [0, "4 x 8, 8"]);
  const wanted = ["4 x 8, 8", "4 x 8, 8", "4 x 8, 8", "4 x 8, 8", "16 x 2, 2"];
  const seen: string[] = [];
  while (run.state.committed < 5) {
    if (run.state.phase === "handover") run.store();
    if (run.state.phase === "loading") run.ready();
    seen.push(sizeOf(run.state.view!.config!));
    run.commit();
    if (run.state.pending !== null) run.store();
  }
  assert.deepEqual(seen, wanted);
});

Deno.test("micro-batch: back to a checkpoint is another history, which decides for itself", () => {
  const run = trained();
  const files = [0, 1, 2, 3].map((stage) => run.fileOf(1, stage));
  run.gone("b");
  run.gone("d");
  assert.deepEqual([run.state.committed, run.state.planning.furthest], [2, 3]);
  for (const peer of Object.values(run.state.peers)) peer.fixedMs = peer.blockMs;
  run.feed({ type: "admin", action: "rollback", source: { step: 1, files }, name: "step-1" });
  assert.deepEqual([run.state.committed, sizeNow(run)], [1, "16 x 2, 2"]);
});

Deno.test("micro-batch: another attempt at the same cut changes its decision, and adds none", () => {
  const run = new RunHarness({ ...LINE, min_peers: 4, n_stage: 4 });
  for (const id of ["a", "b", "c", "d"]) run.join(id, { blockMs: 40, fixedMs: 1 });
  assert.deepEqual([run.state.phase, sizeNow(run)], ["loading", "4 x 8, 8"]);
  for (const peer of Object.values(run.state.peers)) peer.fixedMs = peer.blockMs;
  run.gone("b");
  assert.equal(sizeNow(run), "16 x 2, 2");
  assert.deepEqual(run.state.changes.map(({ step, set, was }) => [step, set.batch_size, was!.batch_size]), [[
    0,
    16,
    8,
  ]]);
});

function recordOf(run: RunHarness, of: Partial<RunRecord>): RunRecord {
  const { config, spec, gen, view, committed, changes } = run.state;
  const rest = { epoch: "e", corpusHash: "", commit: null, peers: [], idsUpTo: 0, ended: null };
  return { ...rest, config, spec, gen, view, committed, changes: structuredClone(changes), ...of };
}

Deno.test("micro-batch: a restarted coordinator has the size of its newest view, with or without the cut that was to follow", () => {
  const run = trained();
  const again = RunHarness.restored(recordOf(run, {}));
  assert.equal(sizeNow(again), "4 x 8, 8");
  // The log ends between the change and its view: peers go on under the view before.
  const { config, view } = run.state;
  const was = { batch_size: 4, gradient_accumulation_steps: 8, eval_iters: 8 };
  const set = { batch_size: 16, gradient_accumulation_steps: 2, eval_iters: 2 };
  const planned = { step: 3, set, was, planned: true as const };
  const changes = [...run.state.changes, planned];
  const torn = RunHarness.restored(recordOf(run, { config: { ...config, ...set }, view, changes }));
  assert.deepEqual(
    [sizeNow(torn), torn.state.changes.length],
    ["4 x 8, 8", 1],
    "it is decided anew with the next cut",
  );
  const byHand = { step: 3, set: { weight_decay: 0.5 }, was: { weight_decay: config.weight_decay } };
  const record = recordOf(run, {
    config: { ...config, weight_decay: 0.5 },
    changes: [...run.state.changes, byHand],
  });
  const { state } = RunHarness.restored(record);
  assert.equal(state.config.weight_decay, config.weight_decay);
  assert.deepEqual(state.changes.at(-1), { step: 3, set: { weight_decay: 0.5 } }, "it is still to come");
});
