// Snapshots in peers' memory, seen from the coordinator: when one is begun and of whom it is asked, when it counts, what breaks
// it, and how a lost stage is brought back. Peers answer by hand.
import assert from "node:assert/strict";
import type { Keeping, KeepOrder } from "../../peer/wire/snapshots.ts";
import { RunHarness } from "../../test/support/run_harness.ts";
import { INTERVAL_STEPS_MIN } from "./cadence.ts";
import { RESTORE_MS } from "./restore.ts";
import { isAsked } from "./restore.ts";
import { SNAPSHOT_MS } from "./snapshots.ts";
import { safetyOf, snapshotStep } from "./safety.ts";

const FILE = { totalBytes: 100, hash: "file" };

/** Two stages on one peer each, c and d spare or replicas; a snapshot after every second step. */
function four(changes: Record<string, unknown> = {}): RunHarness {
  const settings = { n_stage: 2, parity: true, snapshot_interval: 2, max_iters: 1_000, ...changes };
  return RunHarness.training(["a", "b", "c", "d"], settings);
}

function step(run: RunHarness): void {
  const at = run.state.committed;
  run.commit();
  for (const stage of run.state.view!.stages) {
    for (const { peer, learning } of stage.replicas) {
      if (learning !== true) applied(run, { peer, stage: stage.index, step: at });
    }
  }
}

function applied(
  run: RunHarness,
  { peer, stage, step }: { peer: string; stage: number; step: number },
): void {
  const { cut, gen } = run.state.view!;
  run.say(peer, { type: "applied", cut, gen, step, stage, hash: hashOf(stage, step + 1) });
}

/** Of a stage's state with so many steps in it. */
function hashOf(stage: number, step: number): string {
  return `state ${step}/${stage}`;
}

function ordersTo(run: RunHarness, peer: string, order: string) {
  return run.sent("keep").filter((it) => it.to === peer && it.order.order === order);
}

/** All holders export, all keepers confirm. */
function complete(run: RunHarness): void {
  const pending = run.state.kept.pending!;
  for (const kept of pending.stages) {
    for (const { peer } of run.state.view!.stages[kept.stage.index]!.replicas) {
      exported(run, peer, kept.stage.index);
    }
    for (const { peer, index } of [...kept.keepers]) keep(run, peer, { stage: kept.stage.index, index });
  }
}

function exported(run: RunHarness, peer: string, stage: number, hash?: string): void {
  const { step, cut } = run.state.kept.pending ?? run.state.kept.current!;
  run.say(peer, { type: "exported", cut, step, stage, hash: hash ?? hashOf(stage, step), own: true });
}

function keep(
  run: RunHarness,
  peer: string,
  { stage, index, hash }: { stage: number; index: number; hash?: string },
) {
  const { step, stages } = run.state.kept.pending!;
  const { stage: { firstLayer, endLayer }, k } = stages[stage]!;
  const file = { ...FILE, hash: hash ?? FILE.hash };
  run.say(peer, { type: "kept", step, firstLayer, endLayer, k, index, ...file, bytes: 50, spared: 1 });
}

/** A run whose peers keep step 2, and that has gone on to step 3. */
function kept(changes: Record<string, unknown> = {}): RunHarness {
  const run = four(changes);
  step(run);
  step(run);
  complete(run);
  step(run);
  return run;
}

function holders(run: RunHarness, stage: number): string[] {
  return run.state.view!.stages[stage]!.replicas.map(({ peer }) => peer);
}

function lose(run: RunHarness, peers: string[]): void {
  for (const peer of peers) run.feed({ type: "gone", peer, reason: "closed" });
}

function store(run: RunHarness, stage: number, hash?: string): void {
  const { snapshot } = run.state.restoring!;
  const spec = run.state.view!.stages[stage]!;
  const { firstLayer, endLayer, embed, head } = spec;
  const file = {
    stage,
    firstLayer,
    endLayer,
    embed,
    head,
    bytes: 9,
    hash: hash ?? hashOf(stage, snapshot.step),
  };
  run.feed({ type: "stored", cut: run.state.view!.cut, step: snapshot.step, file });
}

Deno.test("snapshots: at the interval each stage's shards go from a holder to peers that do not hold it", () => {
  const run = four();
  step(run);
  assert.equal(run.sent("snapshot-out").length, 0);
  step(run);
  const outs = run.sent("snapshot-out");
  for (const stage of run.state.view!.stages) {
    const mine = outs.filter((out) => out.stage === stage.index);
    assert.deepEqual(new Set(mine.map((out) => out.to)), new Set(holders(run, stage.index)));
    assert.ok(mine.every((out) => out.step === 2 && out.cut === run.state.view!.cut));
    const [sender, ...others] = mine.filter((out) => out.keepers.length > 0);
    assert.ok(sender !== undefined && others.length === 0, "one holder sends");
    const keepers: Keeping[] = sender.keepers;
    assert.equal(keepers.length, sender.k + 1);
    for (const { peer, index } of keepers) {
      assert.ok(!holders(run, stage.index).includes(peer), `${peer} keeps what it holds`);
      const expected = ordersTo(run, peer, "expect").map((it) => it.order);
      const { firstLayer, endLayer } = stage;
      const wanted: KeepOrder = {
        order: "expect",
        firstLayer,
        endLayer,
        step: 2,
        k: sender.k,
        index,
        from: sender.to,
      };
      assert.deepEqual(expected.at(-1), wanted);
    }
  }
  // Peers keep it, so the coordinator asks for no states of its own.
  assert.equal(run.sent("snapshot").length, 0);
  assert.equal(run.state.phase, "round");
});

Deno.test("snapshots: it counts once all shards and hashes are confirmed, and then the steps at risk say so", () => {
  const run = four();
  step(run);
  step(run);
  assert.equal(snapshotStep(run.state), 0);
  assert.ok(safetyOf(run.state).every((stage) => stage.snapshot === "none"));
  run.now += 500;
  complete(run);
  assert.equal(snapshotStep(run.state), 2);
  assert.deepEqual(run.state.kept.pending, null);
  assert.ok(safetyOf(run.state).every((stage) => stage.snapshot === "parity"));
  const [line] = run.reported("snapshot");
  assert.deepEqual(line, { event: "snapshot", step: 2, bytes: 200, spared: 4, took_ms: 500 });
  const flips = run.sent("keep").filter((it) => it.order.order === "flip");
  assert.equal(flips.length, 4);
  const own = run.sent("keep").filter((it) => it.order.order === "own").map((it) => it.to).toSorted();
  assert.deepEqual(own, run.state.view!.stages.flatMap((stage) => holders(run, stage.index)).toSorted());
});

Deno.test("snapshots: what was not asked for, comes twice or is of another file changes nothing or gives it up", () => {
  const run = four();
  step(run);
  step(run);
  const [first] = run.state.kept.pending!.stages;
  const { peer, index } = first!.keepers[0]!;
  keep(run, first!.from, { stage: 0, index });
  keep(run, peer, { stage: 0, index: 1 - index });
  assert.ok(first!.keepers.every((it) => !it.kept), "a stranger's word counted");
  keep(run, peer, { stage: 0, index });
  keep(run, peer, { stage: 0, index });
  assert.equal(run.state.kept.pending!.bytes, 50);
  const other = first!.keepers[1]!;
  keep(run, other.peer, { stage: 0, index: other.index, hash: "another" });
  assert.equal(run.state.kept.pending, null);
  assert.equal(snapshotStep(run.state), 0);
});

Deno.test("snapshots: a holder's copy with another hash is no copy, the sender's ends the snapshot", () => {
  const run = four({ shadows: true });
  step(run);
  step(run);
  const [kept] = run.state.kept.pending!.stages;
  const other = holders(run, 0).find((peer) => peer !== kept!.from)!;
  exported(run, other, 0, "wrong");
  assert.deepEqual(kept!.owners, []);
  exported(run, kept!.from, 0, "wrong");
  assert.equal(run.state.kept.pending, null);
});

Deno.test("snapshots: a keeper, a sender or time gives up the new one; the one before stays", () => {
  for (const cause of ["keeper", "refuses", "time"] as const) {
    const run = kept();
    step(run);
    const { pending } = run.state.kept;
    assert.equal(pending?.step, 4);
    const { peer } = pending!.stages[0]!.keepers[0]!;
    const { firstLayer, endLayer } = pending!.stages[0]!.stage;
    const unkept = { type: "unkept" as const, step: 4, firstLayer, endLayer, reason: "full" };
    if (cause === "keeper") lose(run, [peer]);
    else if (cause === "refuses") run.say(peer, unkept);
    else {
      run.now += SNAPSHOT_MS + 1;
      for (const id of ["a", "b", "c", "d"]) {
        run.feed({ type: "message", peer: id, message: { type: "pause", paused: false } });
      }
      run.feed({ type: "tick" });
    }
    assert.equal(run.state.kept.pending, null, cause);
    assert.equal(run.state.kept.current?.step, 2, cause);
  }
});

Deno.test("snapshots: a lost shard lowers the protection, a second one ends it", () => {
  const run = kept();
  const [stage] = run.state.kept.current!.stages;
  const { firstLayer, endLayer } = stage!.stage;
  const unkept = { type: "unkept" as const, step: 2, firstLayer, endLayer, reason: "damaged" };
  run.say(stage!.keepers[0]!.peer, unkept);
  assert.equal(safetyOf(run.state)[0]!.snapshot, "copy");
  assert.equal(snapshotStep(run.state), 2);
  stage!.owners = [];
  run.say(stage!.keepers[1]!.peer, unkept);
  assert.equal(run.state.kept.current, null);
  assert.equal(snapshotStep(run.state), 0);
});

Deno.test("snapshots: both holders of a stage are lost; the state comes from keepers, and the steps since are counted", () => {
  const run = kept();
  const lost = holders(run, 0);
  const [other] = holders(run, 1);
  lose(run, lost);
  assert.equal(run.state.phase, "restoring");
  assert.equal(run.state.status, "warming up");
  const asked = run.sent("restore");
  assert.deepEqual(asked.map((it) => it.stage), [0, 1]);
  assert.ok(asked.every((it) => it.step === 2 && !lost.includes(it.to)));
  assert.deepEqual(asked[0]!.snapshot, { step: 2, firstLayer: 0, endLayer: 1, k: 1, ...FILE });
  assert.equal(asked[0]!.hash, hashOf(0, 2));
  assert.equal(isAsked(run.state, { peer: asked[0]!.to, step: 2, stage: 0 }), true);
  assert.equal(isAsked(run.state, { peer: lost[0]!, step: 2, stage: 0 }), false);
  assert.equal(isAsked(run.state, { peer: asked[0]!.to, step: 3, stage: 0 }), false);
  store(run, 0);
  assert.equal(isAsked(run.state, { peer: asked[0]!.to, step: 2, stage: 0 }), false);
  assert.equal(run.reported("rollback").length, 0);
  store(run, 1);
  assert.deepEqual(run.reported("rollback"), [{ event: "rollback", step: 2, steps_redone: 1 }]);
  assert.equal(run.state.committed, 2);
  const view = run.sent("view").at(-1)!;
  assert.equal(view.source?.step, 2);
  assert.deepEqual(view.source.files.map((file) => file.hash), [hashOf(0, 2), hashOf(1, 2)]);
  assert.ok(ordersTo(run, other!, "clear").length > 1, "a new cut needs nothing of what is kept");
});

Deno.test("restore: a wrong state, a failure, a departure and silence each go to the next peer, and then to what is older", () => {
  const run = kept();
  lose(run, holders(run, 0));
  const asked = () => run.sent("restore").filter((it) => it.stage === 0);
  store(run, 0, "another state");
  assert.equal(asked().length, 2);
  assert.notEqual(asked()[0]!.to, asked()[1]!.to);
  run.say(asked()[0]!.to, { type: "restore-failed", cut: 1, step: 2, stage: 0, reason: "late" });
  assert.equal(run.state.phase, "restoring", "who was passed over has no say");
  const second = asked()[1]!.to;
  run.say(second, { type: "restore-failed", cut: 1, step: 2, stage: 0, reason: "no shards" });
  assert.equal(run.state.restoring, null);
  assert.deepEqual(run.reported("rollback"), [{ event: "rollback", step: 0, steps_redone: 3 }]);
});

Deno.test("restore: silence goes to the next", () => {
  const run = kept();
  lose(run, holders(run, 0));
  const first = run.sent("restore").find((it) => it.stage === 0)!.to;
  for (const _ of [0, 1]) {
    run.now += RESTORE_MS / 2 + 1;
    for (const id of Object.keys(run.state.peers)) run.say(id, { type: "pause", paused: false });
    run.feed({ type: "tick" });
  }
  const asked = run.sent("restore").filter((it) => it.stage === 0).map((it) => it.to);
  assert.equal(asked.length, 2);
  assert.notEqual(asked[1], first);
});

Deno.test("restore: whoever was asked leaves; the other keeper brings it, and who waits for shards of it is told", () => {
  const run = kept();
  lose(run, holders(run, 0));
  const first = run.sent("restore").find((it) => it.stage === 0)!.to;
  const waiting = run.sent("restore").find((it) => it.stage === 1)!.to;
  lose(run, [first]);
  const told = ordersTo(run, waiting, "gone").map((it) => it.order);
  assert.deepEqual(told, waiting === first ? [] : [{ order: "gone", peer: first }]);
  const asked = run.sent("restore").filter((it) => it.stage === 0);
  assert.equal(asked.length, 2);
  assert.equal(asked[1]!.keepers.some((it) => it.peer === first), false);
  store(run, 0);
  store(run, 1);
  assert.deepEqual(run.reported("rollback"), [{ event: "rollback", step: 2, steps_redone: 1 }]);
});

Deno.test("restore: a peer that comes back with the state on its disk is asked first; another state is ignored", () => {
  const run = kept();
  run.join("e");
  const states = [
    { firstLayer: 0, endLayer: 1, step: 2, hash: hashOf(0, 2) },
    { firstLayer: 1, endLayer: 2, step: 2, hash: "another" },
    { firstLayer: 1, endLayer: 2, step: 1, hash: hashOf(1, 2) },
  ];
  run.say("e", { type: "offer", states });
  assert.ok(run.state.kept.current!.stages[0]!.owners.includes("e"));
  assert.ok(!run.state.kept.current!.stages[1]!.owners.includes("e"));
  lose(run, holders(run, 0).filter((peer) => peer !== "e"));
  assert.equal(run.sent("restore").find((it) => it.stage === 0)?.to, "e");
});

Deno.test("snapshots: with too few peers to keep anything, or parity off, the coordinator collects as before", () => {
  for (const changes of [{ parity: false }, { parity: true, shadows: true }]) {
    const peers = changes.parity ? ["a", "b"] : ["a", "b", "c", "d"];
    const run = RunHarness.training(peers, { n_stage: 2, snapshot_interval: 2, max_iters: 100, ...changes });
    step(run);
    step(run);
    assert.equal(run.sent("snapshot-out").length, 0);
    assert.deepEqual(new Set(run.sent("snapshot").map((it) => it.stage)), new Set([0, 1]));
  }
});

Deno.test("snapshots: without a configured interval the cadence decides, and not before its least", () => {
  const run = four({ snapshot_interval: 0 });
  for (let i = 1; i < INTERVAL_STEPS_MIN; i++) step(run);
  assert.equal(run.sent("snapshot-out").length, 0);
  const { committed } = run.state;
  for (let i = committed; i < 200 && run.sent("snapshot-out").length === 0; i++) step(run);
  assert.ok(run.sent("snapshot-out").length > 0);
  assert.equal(run.sent("snapshot").length, 0, "the coordinator collects nothing meanwhile");
});

Deno.test("restore: a learner that catches up meanwhile makes it needless; nothing is done again", () => {
  const run = kept({ gradient_accumulation_steps: 6 });
  run.join("e");
  step(run);
  const stage = run.state.view!.stages.find((it) =>
    it.replicas.some((replica) => replica.learning === true)
  )!;
  lose(run, holders(run, stage.index).filter((peer) => peer !== "e"));
  assert.equal(run.state.phase, "restoring");
  applied(run, { peer: "e", stage: stage.index, step: 2 });
  assert.equal(run.state.phase, "restoring", "it lacks the newest step");
  applied(run, { peer: "e", stage: stage.index, step: 3 });
  assert.equal(run.state.phase, "handover");
  assert.equal(run.state.restoring, null);
  run.store();
  assert.equal(run.state.committed, 4);
  assert.equal(run.reported("rollback").length, 0);
});
