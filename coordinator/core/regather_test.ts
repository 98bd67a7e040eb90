// A coordinator that has restarted: its peers come back under their own ids with what they hold, and the step that was open
// goes on. Nothing is opened before every stage has a holder of everything committed, and nobody is waited for for ever.
import assert from "node:assert/strict";
import type { Have } from "../../peer/wire/control.ts";
import { RunHarness, stateName } from "../../test/support/run_harness.ts";
import type { PeerBasics, RunRecord } from "./run_record.ts";

/** The log of a run of two stages on two replicas each, killed when three steps were committed. */
function killed(changes: Record<string, unknown> = {}): { before: RunHarness; record: RunRecord } {
  const before = RunHarness.training(["a", "b", "c", "d"], {
    ...{ n_stage: 2, gradient_accumulation_steps: 4, max_iters: 20, ...changes },
  });
  for (let i = 0; i < 3; i++) before.commit();
  return { before, record: recordOf(before) };
}

/** What the log of a run says that was killed now. */
function recordOf(before: RunHarness): RunRecord {
  const { config, spec, gen, view, committed, lastCommit } = before.state;
  const { step, cut, hashes, gradNormSq } = lastCommit!;
  return {
    ...{ epoch: "e", config, spec, corpusHash: "", gen, view, committed, peers: [], idsUpTo: 4, ended: null },
    commit: { step, gen, cut, hashes, gradNormSq },
  };
}

function basics(id: string): PeerBasics {
  const about = { id, runtime: "deno" as const, adapter: "none", engine: "cpu", name: id };
  return { ...about, blockMs: 10, memoryBytes: 1e9 };
}

interface Holding {
  step?: number;
  logged?: boolean;
  hash?: string;
  cut?: number;
}

/** The peer is back with the state of its stage. */
function back(run: RunHarness, id: string, { step = 3, logged = false, hash, cut = 1 }: Holding = {}) {
  const stage = "ac".includes(id) ? 0 : 1;
  const held = { stage, step, hash: hash ?? stateName(step, stage), logged };
  const have: Have = { cut, stages: [held] };
  return run.feed({ type: "return", peer: basics(id), have });
}

Deno.test("regather: with everybody back the step that was open goes on, under a new generation of the same cut", () => {
  const { before, record } = killed();
  const run = RunHarness.restored(record);
  assert.deepEqual([run.state.phase, run.state.status, run.state.committed], ["regathering", "waiting", 3]);
  for (const peer of ["a", "b", "c"]) {
    back(run, peer);
    assert.deepEqual([run.sent("open"), run.sent("view")], [[], []], `opened with ${peer} as the last`);
  }
  const effects = back(run, "d");
  assert.deepEqual([run.cut, run.gen, run.layout()], [1, before.gen + 1, before.layout()]);
  assert.deepEqual(run.sent("open", effects).map(({ to, gen, step, pass }) => [to, gen, step, pass]), [
    ...["a", "c", "b", "d"].map((to) => [to, run.gen, 3, "train"]),
  ]);
  assert.deepEqual([run.state.phase, run.state.status, run.state.stepsRedone], ["round", "training", 0]);
  run.commit();
  assert.equal(run.state.committed, 4);
});

Deno.test("regather: who asked for a total before anybody had it gets it once the others are back", () => {
  const { record } = killed();
  const run = RunHarness.restored(record);
  back(run, "a", { step: 2 });
  const asked = run.say("a", { type: "want-total", cut: run.cut, step: 2, stage: 0 });
  assert.deepEqual(run.totalsAsked(asked), []);
  const effects = ["b", "c", "d"].flatMap((peer) => back(run, peer));
  assert.deepEqual(run.totalsAsked(effects), ["c to a: stage 0, step 2"]);
});

Deno.test("regather: the newest commit is said again, to everybody, before the view", () => {
  const { record } = killed();
  const run = RunHarness.restored(record);
  for (const peer of ["a", "b", "c", "d"]) back(run, peer);
  const commits = run.sent("commit");
  assert.deepEqual(commits.map(({ to }) => to).sort(), ["a", "b", "c", "d"]);
  assert.deepEqual([commits[0]!.step, commits[0]!.hashes], [2, ["total 0", "total 1"]]);
  const order = run.effects.flatMap((it) => it.do === "send" && it.peer === "a" ? [it.message.type] : []);
  assert.deepEqual(
    order,
    ["commit", "view", "open"],
    "a share of the next step came before the last one's end",
  );
});

Deno.test("regather: what a peer logged while nobody listened is told to the others when it is told again", () => {
  const { record } = killed();
  const run = RunHarness.restored(record);
  for (const peer of ["a", "b", "c", "d"]) back(run, peer);
  run.logged("a");
  assert.deepEqual(run.sent("adopt").map(({ to, step }) => [to, step]), [["c", 3]]);
});

Deno.test("regather: who does not come back in eight seconds is done without, if the others hold everything", () => {
  const { record } = killed();
  const run = RunHarness.restored(record);
  for (const peer of ["a", "b", "d"]) back(run, peer);
  run.feed({ type: "tick" });
  run.now += 8_000;
  run.feed({ type: "tick" });
  assert.equal(run.state.phase, "regathering", "a moment too early");
  run.now += 1;
  run.feed({ type: "tick" });
  assert.deepEqual([run.state.phase, run.layout()], ["round", ["a:0123", "b:02 d:13"]]);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [3, 0]);
});

Deno.test("regather: a stage of which nobody is back is waited for for a minute, then the run falls back and says so", () => {
  const { record } = killed();
  const files = [0, 1].map((stage) => {
    const { firstLayer, endLayer, embed, head } = record.view!.stages[stage]!;
    return { stage, firstLayer, endLayer, embed, head, bytes: 1, hash: stateName(2, stage) };
  });
  const run = RunHarness.restored(record, { step: 2, files });
  for (const peer of ["a", "c"]) back(run, peer);
  run.feed({ type: "tick" });
  run.now += 60_000;
  run.feed({ type: "tick" });
  assert.equal(run.state.phase, "regathering");
  run.now += 1;
  run.feed({ type: "tick" });
  assert.deepEqual([run.state.committed, run.state.stepsRedone, run.state.phase], [2, 1, "loading"]);
  assert.deepEqual(run.reported("rollback"), [{ event: "rollback", step: 2, steps_redone: 1 }]);
  assert.equal(run.sent("view").at(-1)!.source!.step, 2);
});

Deno.test("regather: a peer that lacks what is committed is no holder of it, unless it has logged the very total", () => {
  const { record } = killed();
  const lacking = RunHarness.restored(record);
  for (const peer of ["a", "c", "b", "d"]) back(lacking, peer, "ac".includes(peer) ? { step: 2 } : {});
  assert.deepEqual(
    [lacking.state.committed, lacking.state.stepsRedone],
    [0, 3],
    "nobody has the first stage",
  );
  const logged = RunHarness.restored(record);
  for (const peer of ["a", "c", "b", "d"]) back(logged, peer, peer === "a" ? { step: 2, logged: true } : {});
  assert.deepEqual([logged.state.committed, logged.state.phase], [3, "round"]);
  assert.deepEqual(
    logged.totalsAsked(logged.say("c", { type: "want-total", cut: 1, step: 2, stage: 0 })),
    ["a to c: stage 0, step 2"],
    "it can be asked for that total",
  );
});

Deno.test("regather: a state of another cut, or of a stage that is not the peer's, proves nothing", () => {
  const { record } = killed();
  for (const wrong of [{ cut: 2 }, null]) {
    const run = RunHarness.restored(record);
    for (const peer of ["b", "d"]) back(run, peer);
    for (const peer of ["a", "c"]) {
      if (wrong !== null) back(run, peer, wrong);
      else run.feed({ type: "return", peer: basics(peer), have: null });
    }
    run.feed({ type: "tick" });
    assert.equal(run.state.stepsRedone, 3, JSON.stringify(wrong));
  }
  const run = RunHarness.restored(record);
  const stages = [{ stage: 1, step: 3, hash: "forged", logged: false }];
  run.feed({ type: "return", peer: basics("a"), have: { cut: 1, stages } });
  back(run, "b");
  assert.ok(run.state.peers["b"] !== undefined, "a stranger's hash put a holder out");
});

Deno.test("regather: who has nothing of the cut, as when it was still loading, is done without and learns a stage anew", () => {
  const { record } = killed();
  const run = RunHarness.restored(record);
  for (const peer of ["a", "b", "d"]) back(run, peer);
  run.feed({ type: "return", peer: basics("c"), have: null });
  run.feed({ type: "tick" });
  assert.deepEqual(run.layout(), ["a:0123", "b:02 d:13"]);
  assert.match(run.state.events.at(-1)!.text, /the coordinator is back, without c$/);
  run.commit();
  assert.deepEqual(run.layout(), ["a:0123 c?", "b:02 d:13"]);
});

Deno.test("regather: of two that come back with different states nobody is believed, and the run goes back", () => {
  const { record } = killed();
  const run = RunHarness.restored(record);
  back(run, "a");
  back(run, "c", { hash: "another" });
  assert.deepEqual([run.state.phase, run.state.committed], ["regathering", 3], "others may come yet");
  for (const peer of ["b", "d"]) back(run, peer);
  assert.deepEqual([run.state.phase, run.state.committed, run.state.stepsRedone], ["loading", 0, 3]);
  assert.ok(run.state.events.some(({ text }) => /a and c differ in stage 1 after step 2/.test(text)));
  run.ready();
  run.commit();
  assert.deepEqual(Object.keys(run.state.peers), ["a", "c", "b", "d"]);
});

Deno.test("regather: two that agree are right, though the third came back first; the open step is begun anew", () => {
  for (const first of ["a", "b", "c"]) {
    const before = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
    for (let i = 0; i < 3; i++) before.commit();
    const run = RunHarness.restored(recordOf(before));
    const { cut } = run;
    for (const id of new Set([first, "a", "b", "c"])) {
      const hash = id === first ? "other bits" : stateName(3, 0);
      const have: Have = { cut, stages: [{ stage: 0, step: 3, hash, logged: false }] };
      run.feed({ type: "return", peer: basics(id), have });
    }
    assert.deepEqual(Object.keys(run.state.peers), ["a", "b", "c"].filter((id) => id !== first));
    assert.match(run.sent("kicked")[0]!.reason, /state of stage 0 differs after step 2/);
    assert.deepEqual([run.state.committed, run.state.phase, run.state.stepsRedone], [3, "handover", 0]);
    run.store();
    run.ready();
    assert.notEqual(run.cut, cut, "what the others hold of the open step still counts");
    run.commit();
    assert.equal(run.state.committed, 4);
  }
});

Deno.test("regather: two that differ are not judged before the others are back, however often they say it", () => {
  const before = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
  for (let i = 0; i < 3; i++) before.commit();
  const run = RunHarness.restored(recordOf(before));
  for (const id of ["a", "b", "c"]) {
    const hash = id === "a" ? "other bits" : stateName(3, 0);
    const stages = [{ stage: 0, step: 3, hash, logged: false }];
    run.feed({ type: "return", peer: basics(id), have: { cut: run.cut, stages } });
    run.applied(id, 0, { step: 2, hash });
    assert.equal(run.state.stepsRedone, 0);
  }
  assert.deepEqual(Object.keys(run.state.peers), ["b", "c"]);
});

Deno.test("regather: of two that differ a step behind the others, the wrong one is found when it has caught up", () => {
  const before = RunHarness.training(["a", "b", "c", "d"], { n_stage: 1, gradient_accumulation_steps: 4 });
  for (let i = 0; i < 3; i++) before.commit();
  const run = RunHarness.restored(recordOf(before));
  for (const id of ["a", "b", "c", "d"]) {
    const behind = id > "b";
    const hash = id === "d" ? "other bits" : stateName(behind ? 2 : 3, 0);
    const stages = [{ stage: 0, step: behind ? 2 : 3, hash, logged: behind }];
    run.feed({ type: "return", peer: basics(id), have: { cut: run.cut, stages } });
  }
  assert.deepEqual([run.state.committed, run.state.phase, run.state.dispute], [3, "round", null]);
  run.applied("c", 0, { step: 2 });
  run.applied("d", 0, { step: 2, hash: "still other bits" });
  assert.deepEqual(Object.keys(run.state.peers), ["a", "b", "c"]);
  assert.equal(run.state.stepsRedone, 0);
});

Deno.test("regather: nothing that is said before the view goes on can disturb it", () => {
  const { record } = killed();
  const run = RunHarness.restored(record);
  back(run, "a");
  run.say("a", { type: "link-lost", gen: run.gen, peer: "c", reason: "closed" });
  run.logged("a", { step: 3 });
  run.join("new");
  run.gone("a");
  assert.deepEqual([run.state.phase, run.state.logged, run.sent("view")], ["regathering", {}, []]);
});

Deno.test("regather: a log without a view is a run that waits for its first peers", () => {
  const { record } = killed();
  const run = RunHarness.restored({ ...record, view: null, gen: 0, committed: 0, commit: null });
  assert.equal(run.state.phase, "idle");
  for (const peer of ["a", "b", "c", "d"]) run.join(peer);
  assert.equal(run.state.status, "warming up");
});

Deno.test("regather: a run whose last step is committed goes on to its end", () => {
  const { record } = killed({ max_iters: 3 });
  const run = RunHarness.restored(record);
  for (const peer of ["a", "b", "c", "d"]) back(run, peer);
  assert.deepEqual(run.state.round, { pass: "eval", step: 3 });
});
