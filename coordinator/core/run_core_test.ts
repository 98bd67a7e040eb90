// The run's core, admission and commits: who must have said what before a step counts, and what changes nothing.
// Each test fails without the guard it names; departures are in recovery_test.ts, endings in boundary_test.ts.
import assert from "node:assert/strict";
import type { PeerMessage } from "../../peer/wire/control.ts";
import { RunHarness } from "../../test/support/run_harness.ts";

/** Two stages of two replicas each. */
function fourPeers(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b", "c", "d"], { n_stage: 2, ...changes });
}

/** Stage by stage, the peers that hold it. */
function holders(run: RunHarness): string[][] {
  return run.state.view!.stages.map((stage) => stage.replicas.map((replica) => replica.peer));
}

Deno.test("run core: waits for min_peers measured peers and says how many are missing", () => {
  const run = new RunHarness({ min_peers: 3 });
  run.join("a");
  assert.deepEqual([run.state.status, run.state.reason], ["waiting", "1 peer is ready, 3 needed"]);
  run.hello("b");
  run.join("c");
  assert.deepEqual([run.state.status, run.state.reason], ["waiting", "2 peers are ready, 3 needed"]);
  assert.equal(run.state.view, null, "a peer that is not measured yet counted");
  run.say("b", { type: "measured", blockMs: 5, memoryBytes: 1e9 });
  assert.equal(run.state.status, "warming up");
  assert.deepEqual(run.sent("view").map((message) => message.to).sort(), ["a", "b", "c"]);
});

Deno.test("run core: a measurement of 0 ms still makes a usable peer", () => {
  const run = new RunHarness({ min_peers: 1 });
  run.join("a", { blockMs: 0 });
  assert.equal(run.state.status, "warming up");
});

Deno.test("run core: too little memory is a reason to wait, with both numbers", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.join("a", { memoryBytes: 1 });
  run.join("b", { memoryBytes: 1 });
  assert.equal(run.state.status, "waiting");
  assert.match(
    run.state.reason,
    /^too little memory: the model needs about \d+ MB and the peers offer 1 MB$/,
  );
  run.join("c");
  assert.equal(run.state.status, "warming up");
});

Deno.test("run core: the first round opens when every peer of the view is ready, not before", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.join("a");
  run.join("b");
  run.say("a", { type: "ready", gen: run.gen });
  run.say("a", { type: "ready", gen: run.gen });
  assert.equal(run.sent("open").length, 0, "opened with one of two peers ready");
  run.say("b", { type: "ready", gen: run.gen - 1 });
  assert.equal(run.sent("open").length, 0, "a stale ready counted");
  run.say("b", { type: "ready", gen: run.gen });
  assert.deepEqual(run.sent("open").map(({ to, gen, step, pass }) => [to, gen, step, pass]), [
    ["a", 1, 0, "train"],
    ["b", 1, 0, "train"],
  ]);
});

Deno.test("run core: a step is committed when every replica of every stage has logged it", () => {
  const run = fourPeers();
  const everyone = holders(run).flat();
  for (const peer of everyone.slice(0, -1)) run.logged(peer);
  run.logged(everyone[0]!);
  assert.equal(run.state.committed, 0, "committed with one replica missing");
  assert.equal(run.sent("commit").length, 0);
  run.logged(everyone.at(-1)!);
  assert.equal(run.state.committed, 1);
  const commits = run.sent("commit");
  assert.deepEqual(commits.map((commit) => commit.to).sort(), [...everyone].sort());
  assert.deepEqual(commits[0], { type: "commit", to: commits[0]!.to, gen: 1, step: 0, gradNormSq: 2 });
  assert.deepEqual(run.sent("open").at(-1)!.step, 1);
});

Deno.test("run core: loss, norm and rate of a step are those of its totals", () => {
  const run = fourPeers({ learning_rate: 0.5, min_lr: 0.5 });
  run.now += 200;
  run.commit();
  const [line] = run.reported("step");
  // Two replicas of the last stage, each a sum of 4 over 2 micro-batches; 2 · 1 · 4 tokens in 200 ms.
  assert.equal(line!["train/loss"], 2);
  assert.equal(line!.grad_norm, Math.SQRT2);
  assert.equal(line!.lr, 0.5);
  assert.equal(Math.round(line!.tokens_per_s), 40);
  assert.equal(line!.peers, 4);
  assert.equal(run.state.tokensTotal, 8);
});

Deno.test("run core: a replica whose total differs is put out, and the step is not committed with it", () => {
  const run = fourPeers();
  const [first, second] = holders(run)[0]!;
  run.logged(first!);
  run.logged(second!, { hash: "another" });
  assert.equal(run.state.peers[second!], undefined);
  assert.equal(run.sent("kicked").length, 1);
  assert.equal(run.sent("kicked")[0]!.to, second);
  assert.match(run.sent("kicked")[0]!.reason, /total of stage 0 in step 0 differs/);
  assert.deepEqual(run.did("drop").map((effect) => effect.peer), [second]);
  assert.equal(run.state.committed, 0);
  assert.equal(run.gen, 2, "the run goes on without it in a new generation");
  assert.ok(!run.members().includes(second!));
});

Deno.test("run core: a holder whose state differs after a commit is put out (I4); agreements are counted", () => {
  const run = fourPeers();
  run.commit();
  const [first, second] = holders(run)[0]!;
  const [third, fourth] = holders(run)[1]!;
  run.applied(third!, 1, "same");
  run.applied(fourth!, 1, "same");
  assert.equal(run.state.agreements, 1);
  run.applied(first!, 0, "x");
  assert.equal(run.state.agreements, 1);
  run.applied(second!, 0, "y");
  assert.equal(run.state.peers[second!], undefined);
  assert.match(run.sent("kicked")[0]!.reason, /state of stage 0 differs after step 0/);
});

Deno.test("run core: a state hash of another step or generation proves nothing", () => {
  const run = fourPeers();
  run.commit();
  run.commit();
  const [first, second] = holders(run)[0]!;
  const { gen } = run;
  run.applied(first!, 0, "x");
  run.say(second!, { type: "applied", gen, step: 0, stage: 0, hash: "older" });
  run.say(second!, { type: "applied", gen: gen - 1, step: 1, stage: 0, hash: "stale" });
  assert.ok(run.state.peers[second!] !== undefined);
  assert.equal(run.state.agreements, 0);
});

Deno.test("run core: only a holder of the stage can log or apply it", () => {
  const run = fourPeers();
  const [inFirst] = holders(run)[0]!;
  run.logged(inFirst!, { stage: 1, hash: "forged" });
  run.logged(inFirst!, { stage: 7, hash: "forged" });
  assert.deepEqual(run.state.logged, {});
  run.commit();
  run.applied(inFirst!, 1, "forged");
  assert.deepEqual(run.state.stateHashes, {});
  const [other] = holders(run)[1]!;
  run.applied(other!, 1, "true");
  assert.ok(run.state.peers[other!] !== undefined, "a forged hash put an honest holder out");
});

/** The state as text, without what every message may touch: when the peer was last heard. */
function frozen(run: RunHarness): string {
  return JSON.stringify(run.state, (key, value) => key === "heardAt" ? 0 : value);
}

Deno.test("run core: messages of another generation or step change nothing", () => {
  const run = fourPeers();
  run.commit();
  const [peer] = holders(run)[0]!;
  const before = frozen(run);
  for (const gen of [run.gen - 1, run.gen + 1]) {
    const stale: PeerMessage[] = [
      { type: "ready", gen },
      { type: "evaluated", gen, step: 1, stage: 1, lossSum: 1, lossCount: 2 },
      { type: "applied", gen, step: 0, stage: 0, hash: "x" },
      { type: "link-lost", gen, peer: "b", reason: "closed" },
    ];
    for (const message of stale) assert.deepEqual(run.say(peer!, message), [], message.type);
    assert.deepEqual(run.logged(peer!, { gen }), []);
    assert.deepEqual(run.storeStage(1, 0, gen), []);
  }
  for (const step of [0, 2]) assert.deepEqual(run.logged(peer!, { step }), []);
  assert.equal(frozen(run), before);
});

Deno.test("run core: unknown peers change nothing", () => {
  const run = fourPeers();
  const before = frozen(run);
  run.feed({ type: "gone", peer: "nobody", reason: "closed" });
  run.feed({ type: "evict", peer: "nobody", reason: "asked" });
  run.logged("nobody", { stage: 0 });
  run.say("nobody", { type: "link-lost", gen: run.gen, peer: "a", reason: "closed" });
  run.say("nobody", { type: "leave", reason: "" });
  assert.equal(frozen(run), before);
});

Deno.test("run core: a spare's word about links ends no view; that of a member about a member does", () => {
  const run = RunHarness.training(["a", "b"]);
  run.join("spare");
  const { gen } = run;
  run.say("spare", { type: "link-lost", gen, peer: "a", reason: "" });
  run.say("a", { type: "link-lost", gen, peer: "spare", reason: "" });
  assert.deepEqual([run.gen, run.state.phase], [gen, "round"]);
  run.say("a", { type: "link-lost", gen, peer: "b", reason: "ICE failed" });
  assert.equal(run.gen, gen + 1);
});

Deno.test("run core: a joined peer waits as a spare and is taken in at the next boundary", () => {
  const run = RunHarness.training(["a"], { n_stage: 1 });
  run.join("late");
  assert.deepEqual(run.members(), ["a"]);
  run.commit();
  assert.equal(run.state.phase, "handover", "nobody computes until the state is collected");
  run.store();
  assert.deepEqual(run.members(), ["a", "late"]);
  assert.deepEqual([run.state.view!.baseStep, run.state.committed, run.state.stepsRedone], [1, 1, 0]);
});

Deno.test("run core: evaluations count once all their micro-batches are told, by holders of the last stage", () => {
  const run = RunHarness.training(["a", "b"], { eval_interval: 2, n_stage: 2 });
  run.commit();
  run.commit();
  assert.deepEqual(run.state.round, { pass: "eval", step: 2 });
  const { gen } = run;
  const [first, last] = run.members();
  const told = { type: "evaluated" as const, gen, step: 2, lossSum: 2.5, lossCount: 1 };
  run.say(first!, { ...told, stage: 0, lossCount: 2 });
  run.say(last!, { ...told, stage: 1 });
  run.say(last!, { ...told, stage: 1 });
  assert.equal(run.state.valLoss, null, "one of two micro-batches counted as all");
  run.say(last!, { ...told, stage: 1, lossSum: 5, lossCount: 2 });
  assert.equal(run.state.valLoss, 2.5);
  assert.deepEqual(run.reported("eval"), [{ event: "eval", step: 2, "val/loss": 2.5 }]);
  assert.deepEqual(run.state.round, { pass: "train", step: 2 });
});

Deno.test("run core: totals do not count while an evaluation is open", () => {
  const run = RunHarness.training(["a"], { n_stage: 1, eval_interval: 1 });
  run.commit();
  assert.deepEqual(run.logged("a", { step: 1 }), []);
  assert.equal(run.state.committed, 1);
});

Deno.test("run core: non-finite gradients are told to the organizer", () => {
  const run = RunHarness.training(["a"], { n_stage: 1 });
  run.logged("a", { nonFinite: 3 });
  assert.ok(run.state.events.some((event) => /3 non-finite gradients from a/.test(event.text)));
});
