// What pages and metrics say about departures: who would be missed, what a departure cost, and sums that never go down.
// Each case is a run in which peers say what real ones would; the numbers are worked out by hand.
import assert from "node:assert/strict";
import type { PeerMessage } from "../../peer/wire/control.ts";
import { RunHarness } from "../../test/support/run_harness.ts";
import { safetyOf, stepsAtRisk } from "./safety.ts";
import { recoveryStatus, stallSummary } from "./stalls.ts";
import { metricsText } from "./metrics.ts";
import { statusOf } from "./status.ts";

type Heartbeat = PeerMessage & { type: "heartbeat" };

/** Commits take this long while nobody leaves. */
const STEP_MS = 100;

function beat(run: RunHarness, peer: string, counts: Partial<Heartbeat> = {}): void {
  const links = { stepMs: 1, bytesUp: 2, bytesDown: 3, direct: 1, relayed: 0, hidden: false };
  run.say(peer, {
    ...{ type: "heartbeat", ...links, recomputed: 0, recoveryBytes: 0, retainedBytes: 0, ...counts },
  });
}

/** The open step is logged by every holder, `afterMs` after the commit before, and applied by all. */
function commit(run: RunHarness, afterMs = STEP_MS): void {
  const { committed, view } = run.state;
  const { cut, gen } = view!;
  run.now += afterMs;
  const sums = { gradNormSq: 1, saturated: 0, nonFinite: 0 };
  for (const { index, replicas } of view!.stages) {
    for (const { peer, learning } of replicas) {
      if (learning === true) continue;
      run.say(peer, {
        type: "logged",
        cut,
        gen,
        step: committed,
        stage: index,
        hash: `total ${index}`,
        ...sums,
      });
    }
  }
  assert.equal(run.state.committed, committed + 1);
  for (const { index, replicas } of view!.stages) {
    for (const { peer } of replicas) {
      run.say(peer, { type: "applied", cut, gen, step: committed, stage: index, hash: "state" });
    }
  }
}

function gone(run: RunHarness, peer: string, reason = "connection closed"): void {
  run.feed({ type: "gone", peer, reason });
}

/** The peer that computes in a stage. */
function worker(run: RunHarness, stage: number): string {
  return run.state.view!.stages[stage]!.replicas[0]!.peer;
}

function metric(run: RunHarness, name: string): number {
  const line = metricsText(run.state).split("\n").find((it) => it.startsWith(`${name} `));
  assert.ok(line !== undefined, `no metric ${name}`);
  return Number(line.slice(name.length + 1));
}

/** Two stages without a second holder. */
function chain(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 2, ...changes });
}

/** Two stages, each computed by one and kept by the other. */
function shadowed(): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 2, shadows: true });
}

Deno.test("status: with a second holder of every stage nothing is at risk, and the level says why", () => {
  const run = shadowed();
  commit(run);
  commit(run);
  assert.equal(stepsAtRisk(run.state), 0);
  assert.deepEqual(safetyOf(run.state).map((it) => [it.redundancy, it.holders.length, it.stepsAtRisk]), [
    ["shadow", 2, 0],
    ["shadow", 2, 0],
  ]);
  assert.deepEqual(statusOf(run.state, run.now).peers.map((peer) => peer.stepsAtRisk), [0, 0]);
  const pair = RunHarness.training(["a", "b"], { n_stage: 1 });
  assert.deepEqual(safetyOf(pair.state).map((it) => it.redundancy), ["replica"]);
});

Deno.test("status: what a lone holder would take with it are the steps since the newest snapshot", () => {
  const run = chain({ snapshot_interval: 2 });
  for (let i = 0; i < 3; i++) commit(run);
  assert.equal(stepsAtRisk(run.state), 3, "an incomplete snapshot counted");
  for (const { index } of run.state.view!.stages) {
    run.feed({ type: "stored", cut: run.cut, step: 2, file: { ...run.fileOf(2, index), hash: "state" } });
  }
  assert.equal(stepsAtRisk(run.state), 1);
  const status = statusOf(run.state, run.now);
  assert.deepEqual(status.peers.map((peer) => peer.stepsAtRisk), [1, 1]);
  assert.deepEqual([status.recovery.snapshotStep, status.stepsAtRisk], [2, 1]);
  assert.deepEqual(status.safety.map((it) => it.redundancy), ["none", "none"]);
  run.join("spare");
  assert.equal(statusOf(run.state, run.now).peers.at(-1)!.stepsAtRisk, 0, "a spare holds nothing");
});

Deno.test("status: a learner protects nothing before it has everything, and is called what it is", () => {
  const run = shadowed();
  commit(run);
  gone(run, "b");
  commit(run);
  assert.equal(stepsAtRisk(run.state), 2);
  run.join("c");
  commit(run);
  const status = statusOf(run.state, run.now);
  assert.deepEqual(status.safety.map((it) => [it.holders, it.learning, it.redundancy]), [
    [["a"], ["c"], "none"],
    [["a"], ["c"], "none"],
  ]);
  const [first, second] = status.peers;
  assert.deepEqual([first!.stepsAtRisk, second!.stepsAtRisk], [3, 0]);
  assert.equal(second!.role, "fetching stage 1; fetching stage 2");
  assert.match(metricsText(run.state), /^shoal_stage_learners\{stage="2"\} 1$/m);
  commit(run);
  assert.equal(stepsAtRisk(run.state), 0, "the learner had applied the newest step");
  assert.deepEqual(safetyOf(run.state).map((it) => it.redundancy), ["shadow", "shadow"]);
});

Deno.test("status: a departure's stall is what the next commit was late, whoever noticed it when", () => {
  const run = shadowed();
  for (let i = 0; i < 4; i++) commit(run);
  assert.equal(run.state.stepMs, STEP_MS);
  run.now += 350;
  gone(run, "b", "silent for 1 s");
  const [pending] = recoveryStatus(run.state).departures;
  assert.deepEqual(
    [pending!.stallMs, pending!.reassigned],
    [null, 2],
    "its costs are shown while it is open",
  );
  assert.equal(recoveryStatus(run.state).stall, null);
  commit(run, 150);
  const expected = {
    peer: "b",
    how: "silent for 1 s",
    step: 4,
    stallMs: 400,
    reassigned: 2,
    lost: 0,
    atMs: run.now - 150,
  };
  assert.deepEqual(recoveryStatus(run.state).departures, [expected]);
  const [line] = run.reported("departure");
  assert.deepEqual([line!.stall_ms, line!.reassigned, line!.steps_lost], [400, 2, 0]);
  assert.equal(metric(run, "shoal_departure_stall_seconds_sum"), 0.4);
});

Deno.test("status: two departures in one step each have their own costs", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
  for (let i = 0; i < 2; i++) commit(run);
  gone(run, "b");
  gone(run, "c");
  commit(run, 300);
  const { departures } = recoveryStatus(run.state);
  // The second had one micro-batch of its own and at most one of the first's.
  assert.equal(departures[0]!.reassigned, 1);
  assert.ok([1, 2].includes(departures[1]!.reassigned), `${departures[1]!.reassigned}`);
  assert.deepEqual(departures.map((it) => it.stallMs), [200, 200]);
});

Deno.test("status: steps that are done again belong to the departure, and the stall covers the way back", () => {
  const run = chain();
  for (let i = 0; i < 3; i++) commit(run);
  const last = run.now;
  gone(run, worker(run, 1));
  assert.deepEqual(recoveryStatus(run.state).departures.map((it) => it.lost), [3]);
  run.now += 5000;
  run.ready();
  commit(run, 200);
  const [line] = run.reported("departure");
  assert.deepEqual([line!.steps_lost, line!.stall_ms], [3, run.now - last - STEP_MS]);
  commit(run);
  assert.equal(run.reported("departure").length, 1, "a departure was told twice");
});

Deno.test("status: neither a pause of the run nor one before a departure is a stall", () => {
  const run = shadowed();
  for (let i = 0; i < 2; i++) commit(run);
  run.feed({ type: "admin", action: "pause" });
  commit(run);
  assert.equal(run.state.phase, "held");
  run.now += 60_000;
  for (const peer of ["a", "b"]) beat(run, peer);
  gone(run, "b");
  run.now += 60_000;
  beat(run, "a");
  run.feed({ type: "admin", action: "resume" });
  commit(run, STEP_MS + 50);
  assert.deepEqual(recoveryStatus(run.state).departures.map((it) => it.stallMs), [50]);
  assert.ok(run.state.stepMs < 2 * STEP_MS, "the pause counted as a step's time");
});

Deno.test("status: an evaluation that was under way is no stall", () => {
  const run = RunHarness.training(["a", "b"], {
    ...{ n_stage: 2, shadows: true, eval_interval: 2 },
  });
  for (let i = 0; i < 2; i++) commit(run);
  assert.equal(run.state.round?.pass, "eval");
  run.now += 5000;
  gone(run, "b");
  run.now += 300;
  const evaluated = { type: "evaluated" as const, gen: run.gen, step: 2, stage: 1, lossSum: 6, lossCount: 2 };
  run.say("a", evaluated);
  commit(run);
  assert.deepEqual(recoveryStatus(run.state).departures.map((it) => it.stallMs), [300]);
});

Deno.test("status: sums stay when a peer goes, and a peer that counts anew is added", () => {
  const run = shadowed();
  commit(run);
  beat(run, "b", { recomputed: 3, recoveryBytes: 500, retainedBytes: 70, fenced: 2 });
  beat(run, "b", { recomputed: 4, recoveryBytes: 800, retainedBytes: 60, fenced: 2 });
  beat(run, "a", { recomputed: 1, retainedBytes: 5 });
  assert.match(metricsText(run.state), /^shoal_retained_bytes\{peer="b"\} 60$/m);
  gone(run, "b");
  const sums = () =>
    ["shoal_recomputed_micro_batches_total", "shoal_recovery_bytes_total", "shoal_fenced_frames_total"].map(
      (name) => metric(run, name),
    );
  assert.deepEqual(sums(), [5, 800, 2]);
  beat(run, "a", { recomputed: 0 });
  beat(run, "a", { recomputed: 2 });
  assert.deepEqual(sums(), [7, 800, 2]);
  assert.doesNotMatch(metricsText(run.state), /peer="b"/);
});

Deno.test("status: a peer whose total differed is named, and still counted when it is gone", () => {
  const run = shadowed();
  commit(run);
  const { cut, gen, stages } = run.state.view!;
  const [first, second] = stages[0]!.replicas.map((replica) => replica.peer);
  const total = {
    type: "logged" as const,
    cut,
    gen,
    step: 1,
    stage: 0,
    gradNormSq: 1,
    saturated: 0,
    nonFinite: 0,
  };
  run.say(first!, { ...total, hash: "one" });
  run.say(second!, { ...total, hash: "another" });
  const named = statusOf(run.state, run.now).peers.find((peer) => peer.id === second);
  assert.equal(named!.suspect, 1);
  gone(run, second!);
  assert.equal(metric(run, "shoal_suspect_totals_total"), 1);
  assert.deepEqual(recoveryStatus(run.state).suspects, [{ peer: second, count: 1 }]);
});

Deno.test("status: quantiles are stalls that happened; there are none before the first", () => {
  const of = (stalls: (number | null)[]) =>
    stallSummary({
      departures: stalls.map((stallMs) => ({
        ...{ peer: "x", how: "", step: 0, at: 0, from: null, reassigned: 0, lost: 0, before: null, stallMs },
      })),
    });
  assert.equal(of([]), null);
  assert.equal(of([null]), null);
  assert.deepEqual(of([7, null]), { last: 7, median: 7, p95: 7, worst: 7 });
  const hundred = Array.from({ length: 100 }, (_, i) => 100 - i);
  assert.deepEqual(of(hundred), { last: 1, median: 50, p95: 95, worst: 100 });
});

Deno.test("status: only recent departures are kept, all are counted", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 1 });
  for (let i = 0; i < 120; i++) {
    gone(run, run.members().find((peer) => peer !== "a")!);
    run.join(`guest${i}`);
    for (let step = 0; step < 2; step++) commit(run);
    // The run must not end in the middle of the test.
    run.state.target = run.state.committed + 10;
  }
  assert.deepEqual([run.state.departures.length, metric(run, "shoal_departures_total")], [100, 120]);
  assert.equal(recoveryStatus(run.state).departures.length, 20);
  assert.equal(metric(run, "shoal_departure_stall_seconds_count"), 120);
});

Deno.test("status: a change of the holders is told once, after the commit that follows", () => {
  const run = shadowed();
  for (let i = 0; i < 3; i++) commit(run);
  const told = () =>
    run.reported("holders").map((it) => [it.step, it.holders, it.redundancy, it.steps_at_risk]);
  const safe = [1, [2, 2], ["shadow", "shadow"], 0];
  assert.deepEqual(told(), [safe]);
  gone(run, "b");
  for (let i = 0; i < 2; i++) commit(run);
  assert.deepEqual(told(), [safe, [4, [1, 1], ["none", "none"], 4]]);
});

Deno.test("metrics: operations, waits and links of each peer in base units; links are not for everybody", () => {
  const run = shadowed();
  const { index: stage, replicas } = run.state.view!.stages[1]!;
  const peer = replicas.find((replica) => replica.microBatches.length > 0)!.peer;
  const other = Object.keys(run.state.peers).find((id) => id !== peer)!;
  const parts = { encodeMs: 5, sendMs: 1 };
  const times = { microBatches: 9, forwardMs: 10, backwardMs: 20, weightGradMs: 30, waitMs: 4, ...parts };
  beat(run, peer, {
    ops: [{ cut: run.cut, stage, ...times }],
    links: [{ peer: other, rttMs: 50, upBytesPerS: 0, path: "relay" }],
  });
  const lines = metricsText(run.state).split("\n");
  const of = `{peer="${peer}",stage="2"`;
  for (const [operation, seconds] of [["F", 0.01], ["B", 0.02], ["W", 0.03]]) {
    assert.ok(lines.includes(`shoal_peer_operation_seconds${of},operation="${operation}"} ${seconds}`));
  }
  assert.ok(lines.includes(`shoal_peer_wait_seconds${of}} 0.004`));
  const boundary = lines.filter((line) => line.startsWith("shoal_peer_boundary_seconds"));
  assert.deepEqual(
    boundary,
    [["encode", 0.005], ["send", 0.001]].map(([part, seconds]) =>
      `shoal_peer_boundary_seconds${of},part="${part}"} ${seconds}`
    ),
  );
  assert.ok(lines.includes(`shoal_peer_info{peer="${peer}",runtime="deno",engine="cpu"} 1`));
  const link = `{from="${peer}",to="${other}",path="relay"}`;
  assert.ok(lines.includes(`shoal_link_round_trip_seconds${link} 0.05`));
  assert.ok(lines.includes(`shoal_link_bytes_per_second${link} NaN`), "an unknown rate is told as one");
  assert.doesNotMatch(metricsText(run.state, { links: false }), /shoal_link_/);
  const shown = statusOf(run.state, run.now).peers.find(({ id }) => id === peer)!;
  assert.deepEqual(shown.ops, [{ cut: run.cut, stage, ...times }]);
  assert.deepEqual(shown.linkFigures!.map((it) => [it.peer, it.rttMs, it.path]), [[other, 50, "relay"]]);
  const others = statusOf(run.state, run.now).peers.length - 1;
  assert.equal(shown.linksPresumed, others - 1, "one link is known");
  const far = statusOf(run.state, run.now).peers.find(({ id }) => id === other)!;
  assert.equal(far.linksPresumed, others - 1, "a round trip is the same from both ends");
});

Deno.test("metrics: the manual lists every one of them, and no other", async () => {
  const manual = await Deno.readTextFile(new URL("../../docs/self-hosting.md", import.meta.url));
  const listed = [...manual.matchAll(/^\| `(shoal_\w+)/gm)].map((row) => row[1]!);
  const names = [...metricsText(shadowed().state).matchAll(/^# TYPE (\S+)/gm)].map((type) => type[1]!);
  assert.deepEqual(listed.toSorted(), names.toSorted());
});

Deno.test("metrics: every family has a help, a type and well-formed samples, under one name", () => {
  const run = shadowed();
  run.state.peers["a"]!.id = 'odd"id\\';
  const lines = metricsText(run.state).trimEnd().split("\n");
  const names = lines.filter((line) => line.startsWith("# TYPE ")).map((line) => line.split(" ")[2]!);
  assert.equal(new Set(names).size, names.length);
  const label = '\\w+="(\\\\.|[^"\\\\])*"';
  const labels = `\\{${label}(,${label})*\\}`;
  let family = "";
  for (const line of lines) {
    if (line.startsWith("# HELP ")) family = line.split(" ")[2]!;
    else if (line.startsWith("# TYPE ")) assert.equal(line.split(" ")[2], family);
    else assert.match(line, new RegExp(`^${family}(_sum|_count)?(${labels})? (NaN|-?[\\d.e+-]+)$`));
  }
  assert.ok(lines.includes('shoal_retained_bytes{peer="odd\\"id\\\\"} 0'));
  assert.ok(lines.includes('shoal_stage_holders{stage="1"} 2'));
});
