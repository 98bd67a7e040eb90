// The run's core, admission and commits: who must have said what before a step counts, and what changes nothing.
// Each test fails without the guard it names; departures are in recovery_test.ts and amend_test.ts, who learns and moves in
// maintain_test.ts, totals that differ or are missing in totals_test.ts, endings in boundary_test.ts.
import assert from "node:assert/strict";
import type { PeerMessage } from "../../peer/wire/control.ts";
import { RunHarness } from "../../test/support/run_harness.ts";
import { statusOf } from "./status.ts";

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

Deno.test("run core: what a peer says of its kernels is in its record, its status and the events", () => {
  const run = new RunHarness({ min_peers: 1 });
  const kernels = "nn quads 16x16 3.1 GFLOP/s";
  run.hello("a");
  run.say("a", { type: "measured", blockMs: 5, memoryBytes: 1e9, kernels });
  run.hello("b");
  run.say("b", { type: "measured", blockMs: 5, memoryBytes: 1e9 });
  assert.deepEqual(["a", "b"].map((id) => run.state.peers[id]?.kernels), [kernels, undefined]);
  const told = statusOf(run.state, run.now).peers.map((peer) => peer.kernels);
  assert.deepEqual(told, [kernels, undefined]);
  const admitted = run.state.events.filter((event) => event.kind === "admitted").map((event) => event.text);
  assert.deepEqual(admitted, [`a measured: 5.0 ms per block; ${kernels}`, "b measured: 5.0 ms per block"]);
});

Deno.test("run core: too little memory is a reason to wait, with what is needed, offered and missing", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.join("a", { memoryBytes: 1 });
  run.join("b", { memoryBytes: 1 });
  assert.equal(run.state.status, "waiting");
  assert.match(
    run.state.reason,
    /^too little memory: The model does not fit: its two ends take about 1 MB and 1 MB .* 1 MB are missing\.$/,
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

Deno.test("run core: a step is committed when two holders of every stage have logged it, and all if there are fewer", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], { n_stage: 2, gradient_accumulation_steps: 6 });
  const [[first, second], [third, fourth]] = holders(run) as [[string, string], [string, string]];
  run.join("e");
  run.commit();
  assert.deepEqual(run.layout().map((stage) => stage.split(" ").length).sort(), [2, 3]);
  run.learn("e", run.state.transfers[0]!.stage);
  const stage = holders(run).findIndex((it) => it.includes("e"));
  assert.equal(holders(run)[stage]!.length, 3);
  const [one, two] = stage === 0 ? [first, second] : [third, fourth];
  const others = stage === 0 ? [third, fourth] : [first, second];
  for (const peer of others) run.logged(peer, { stage: 1 - stage });
  run.logged(one, { stage });
  run.logged(one, { stage });
  assert.equal(run.state.committed, 1, "committed with one holder of the stage");
  run.logged(two, { stage });
  assert.equal(run.state.committed, 2, "the third holder was waited for");
  const lone = RunHarness.training(["a", "b"], { n_stage: 2 });
  lone.logged("a");
  assert.equal(lone.state.committed, 0, "committed with one stage missing");
  lone.logged("b");
  assert.equal(lone.state.committed, 1);
});

Deno.test("run core: the commit names every stage's total, is durable before anybody hears of it, and opens the next step", () => {
  const run = fourPeers();
  const { effects } = run;
  const before = effects.length;
  run.commitOnly();
  const commits = run.sent("commit");
  assert.deepEqual(commits.map((commit) => commit.to).sort(), ["a", "b", "c", "d"]);
  assert.deepEqual(commits[0], {
    ...{ type: "commit", to: commits[0]!.to, cut: 1, step: 0, gradNormSq: 2 },
    hashes: ["total 0", "total 1"],
  });
  const since = effects.slice(before);
  const [persist] = since.filter((effect) => effect.do === "persist");
  assert.deepEqual(persist, {
    do: "persist",
    record: {
      ...{ kind: "commit", step: 0, gen: 1, cut: 1, hashes: ["total 0", "total 1"], gradNormSq: 2 },
    },
  });
  const told = since.findIndex((effect) => effect.do === "send" && effect.message.type === "commit");
  assert.ok(since.indexOf(persist!) < told, "told before it was durable");
  assert.deepEqual(run.sent("open").at(-1)!.step, 1);
  assert.deepEqual(run.state.loggers[0], { 0: holders(run)[0], 1: holders(run)[1] });
});

Deno.test("run core: loss, norm and rate of a step are those of its totals", () => {
  const run = fourPeers({ learning_rate: 0.5, min_lr: 0.5 });
  run.now += 200;
  run.commit();
  const [line] = run.reported("step");
  // Both micro-batches have a loss of 2; 2 · 1 · 4 tokens in 200 ms.
  assert.equal(line!["train/loss"], 2);
  assert.equal(line!.grad_norm, Math.SQRT2);
  assert.equal(line!.lr, 0.5);
  assert.equal(Math.round(line!.tokens_per_s), 40);
  assert.equal(line!.peers, 4);
  assert.equal(run.state.tokensTotal, 8);
});

Deno.test("run core: the losses of a step count in the order of micro-batches, however they come", () => {
  const told = [0.1, 0.2, 0.3, 0.6];
  const mean = told.reduce((sum, loss) => sum + loss, 0) / 4;
  assert.notEqual(
    told.toReversed().reduce((sum, loss) => sum + loss, 0) / 4,
    mean,
    "the order makes no difference",
  );
  const run = RunHarness.training(["a", "b"], { n_stage: 1, gradient_accumulation_steps: 4 });
  run.losses("b", { 3: told[3]!, 1: told[1]! });
  run.losses("a", { 2: told[2]!, 0: told[0]! });
  for (const peer of ["a", "b"]) run.logged(peer);
  assert.deepEqual(run.reported("step").map((line) => line["train/loss"]), [mean]);
});

Deno.test("run core: losses that come after the commit are waited for until the next one, which tells what there is", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 1 });
  run.losses("a", { 0: 1 });
  for (const peer of ["a", "b"]) run.logged(peer);
  assert.deepEqual(run.reported("step"), [], "told with half of its losses");
  run.losses("b", { 1: 4 }, 0);
  assert.deepEqual(run.reported("step").map((line) => [line.step, line["train/loss"]]), [[1, 2.5]]);
  for (const peer of ["a", "b"]) run.applied(peer, 0);
  run.losses("a", { 0: 3 });
  for (const peer of ["a", "b"]) run.logged(peer);
  run.commit();
  assert.deepEqual(run.reported("step").map((line) => [line.step, line["train/loss"]]), [
    ...[[1, 2.5], [2, NaN], [3, 2]],
  ], "half of a step's losses is not its loss");
  assert.deepEqual(run.state.losses, [{ step: 1, train: 2.5 }, { step: 3, train: 2 }], "a gap in the curve");
});

Deno.test("run core: losses of another cut or step, or of a peer of another stage, count for nothing", () => {
  const run = fourPeers();
  const [inFirst] = holders(run)[0]!;
  const [inLast] = holders(run)[1]!;
  const loss = { type: "losses" as const, cut: 1, step: 0, stage: 1, microBatches: [0, 1], losses: [9, 9] };
  run.say(inFirst!, loss);
  run.say(inFirst!, { ...loss, stage: 0 });
  run.say(inLast!, { ...loss, cut: 2 });
  run.say(inLast!, { ...loss, step: 1 });
  run.say(inLast!, { ...loss, stage: 7 });
  assert.deepEqual([run.state.report], [null]);
  run.say(inLast!, { ...loss, microBatches: [0, 2, 256], losses: [9, 9, 9] });
  assert.deepEqual(run.state.report?.losses, { 0: 9 }, "of micro-batches that the step does not have");
  run.say(inLast!, { ...loss, losses: [8] });
  assert.deepEqual(run.state.report?.losses, { 0: 8 }, "a micro-batch without a loss");
  run.say(inLast!, loss);
  assert.deepEqual(run.state.report?.losses, { 0: 9, 1: 9 });
});

Deno.test("run core: after a rollback the losses of the step before it count, not those told of a step that is void", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  run.commit();
  const [first, last] = run.members();
  run.losses(last!, { 0: 7, 1: 7 });
  run.join("c");
  run.gone(first!);
  assert.equal(run.state.committed, 0);
  run.ready();
  run.commit();
  assert.deepEqual(run.reported("step").map((line) => [line.step, line["train/loss"]]), [[1, 2], [1, 2]]);
});

Deno.test("run core: holders whose states agree after a commit are counted", () => {
  const run = fourPeers();
  run.commitOnly();
  const [third, fourth] = holders(run)[1]!;
  run.applied(third!, 1, { hash: "same" });
  run.applied(fourth!, 1, { hash: "same" });
  assert.equal(run.state.agreements, 1);
  run.applied(holders(run)[0]![0]!, 0, { hash: "x" });
  assert.equal(run.state.agreements, 1);
});

Deno.test("run core: a state hash is compared with those of its own step, also when it comes late", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 1, gradient_accumulation_steps: 1, shadows: true });
  assert.deepEqual(run.layout(), ["a:0 b"]);
  run.commitOnly();
  run.applied("a", 0, { step: 0, hash: "x" });
  run.commitOnly();
  run.applied("a", 0, { step: 1, hash: "y" });
  assert.deepEqual(run.applied("b", 0, { step: 1, cut: 2, hash: "stale" }), []);
  assert.deepEqual(run.applied("b", 0, { step: 2, hash: "of a step that is not committed" }), []);
  run.applied("b", 0, { step: 0, hash: "x" });
  assert.equal(run.state.agreements, 1);
  run.applied("b", 0, { step: 1, hash: "x" });
  assert.deepEqual(run.state.disputes, { a: 1, b: 1 }, "the hash of another step was good enough");
});

/** Two stages, each with one that computes and one that does not. */
function withShadows(): RunHarness {
  const config = { n_stage: 2, gradient_accumulation_steps: 1, shadows: true };
  const run = RunHarness.training(["a", "b", "c", "d"], config);
  assert.deepEqual(run.layout(), ["a:0 d", "b:0 c"]);
  return run;
}

function allLogged(run: RunHarness): void {
  for (const peer of ["a", "b", "c", "d"]) run.logged(peer);
}

Deno.test("run core: a step waits for the states of those who compute in it", () => {
  const run = withShadows();
  run.commitOnly();
  allLogged(run);
  assert.equal(run.state.committed, 1, "nobody has told its state");
  run.applied("a", 0);
  assert.equal(run.state.committed, 1, "one of two has not told its state");
  run.applied("b", 1);
  assert.equal(run.state.committed, 2, "it waits for those that compute nothing");
});

Deno.test("run core: only a holder of the stage can log or apply it", () => {
  const run = fourPeers();
  const [inFirst] = holders(run)[0]!;
  run.logged(inFirst!, { stage: 1, hash: "forged" });
  run.logged(inFirst!, { stage: 7, hash: "forged" });
  assert.deepEqual(run.state.logged, {});
  run.commitOnly();
  run.applied(inFirst!, 1, { hash: "forged" });
  assert.deepEqual([run.state.stateHashes, run.state.applied], [{}, {}]);
  const [other] = holders(run)[1]!;
  run.applied(other!, 1, { hash: "true" });
  assert.ok(run.state.peers[other!] !== undefined, "a forged hash put an honest holder out");
});

/** The state as text, without what every message may touch: when the peer was last heard. */
function frozen(run: RunHarness): string {
  return JSON.stringify(run.state, (key, value) => ["heardAt", "ear", "beats"].includes(key) ? 0 : value);
}

Deno.test("run core: messages of another generation, cut or step change nothing", () => {
  const run = fourPeers();
  run.commit();
  const [peer] = holders(run)[0]!;
  const before = frozen(run);
  for (const gen of [run.gen - 1, run.gen + 1]) {
    const stale: PeerMessage[] = [
      { type: "ready", gen },
      { type: "evaluated", gen, step: 1, stage: 1, lossSum: 1, lossCount: 2 },
      { type: "link-lost", gen, peer: "b", reason: "closed" },
    ];
    for (const message of stale) assert.deepEqual(run.say(peer!, message), [], message.type);
  }
  for (const cut of [run.cut - 1, run.cut + 1]) {
    const place = { cut, step: 1, stage: 0 };
    const stale: PeerMessage[] = [
      { type: "applied", ...place, gen: run.gen, step: 0, hash: "x" },
      { type: "warm", cut, gen: run.gen, stage: 0 },
      { type: "losses", ...place, stage: 1, microBatches: [0], losses: [1] },
      { type: "want-total", ...place },
      { type: "no-total", ...place, to: "b" },
      { type: "want-state", cut, stage: 0, reason: "" },
    ];
    for (const message of stale) assert.deepEqual(run.say(peer!, message), [], message.type);
    assert.deepEqual(run.logged(peer!, { cut }), []);
    assert.deepEqual(run.storeStage(1, 0, cut), []);
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
