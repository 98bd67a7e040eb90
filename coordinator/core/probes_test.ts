// Which links are measured before a peer gets work: by whom, one pair at a time, and never for longer than the patience allows.
import assert from "node:assert/strict";
import { HEARTBEAT, RunHarness } from "../../test/support/run_harness.ts";
import { requestOf } from "./plan_request.ts";
import { AGAIN_MS, PAIR_MS, PARTNERS_MAX, PATIENCE_MS, STALE_MS } from "./probes.ts";

/** Says hello and measures itself; it can probe. */
function newcomer(run: RunHarness, id: string): void {
  run.hello(id);
  run.say(id, { type: "measured", blockMs: 10, memoryBytes: 1e9, probes: true });
  run.now++;
}

/** Who was asked to measure the link to whom, in order. */
function asked(run: RunHarness): string[] {
  return run.sent("probe").map(({ to, peer }) => `${to}-${peer}`);
}

function probed(run: RunHarness, a: string, b: string, rttMs = 40): void {
  for (const [from, peer] of [[a, b], [b, a]] as const) {
    run.say(from, { type: "probed", peer, link: { peer, rttMs, upBytesPerS: 2e6, path: "direct" } });
  }
}

function tick(run: RunHarness, ms: number): void {
  run.now += ms;
  run.feed({ type: "tick" });
}

function admitted(run: RunHarness): string[] {
  return Object.values(run.state.peers).filter((peer) => peer.blockMs > 0).map((peer) => peer.id);
}

Deno.test("probes: the first view waits until the links of those who can probe are known, and is planned with them", () => {
  const run = new RunHarness({ min_peers: 3 });
  newcomer(run, "a");
  assert.deepEqual(admitted(run), ["a"], "nobody else was there");
  newcomer(run, "b");
  newcomer(run, "c");
  assert.deepEqual(asked(run), ["b-a", "a-b"], "one pair at a time for each peer");
  probed(run, "a", "b");
  assert.deepEqual(admitted(run), ["a", "b"]);
  assert.deepEqual(asked(run).slice(2), ["c-a", "a-c"]);
  tick(run, 1);
  assert.equal(asked(run).length, 4, "c is in a pair, b is free");
  probed(run, "c", "a", 80);
  assert.equal(run.state.view, null, "c has another link to measure");
  probed(run, "c", "b", 60);
  assert.equal(run.state.status, "warming up");
  const { spec, config, peers } = run.state;
  const { link } = requestOf({ spec, config, peers: Object.values(peers) });
  assert.deepEqual([link("a", "b")?.latency, link("c", "a")?.latency], [0.02, 0.04]);
  assert.deepEqual([link("b", "c")?.bytesPerS, link("b", "c")?.latencyMost], [2e6, undefined]);
});

Deno.test("probes: whoever cannot probe is admitted at once and is nobody's partner", () => {
  const run = new RunHarness({ min_peers: 3 });
  run.join("old");
  newcomer(run, "a");
  run.join("older");
  assert.deepEqual(asked(run), []);
  assert.equal(run.state.status, "warming up");
});

Deno.test("probes: nobody waits for longer than the patience, and what comes later still counts", () => {
  const run = new RunHarness({ min_peers: 2 });
  newcomer(run, "a");
  newcomer(run, "b");
  tick(run, PATIENCE_MS - 2);
  assert.equal(run.state.view, null);
  tick(run, 1);
  assert.equal(run.state.status, "warming up");
  probed(run, "a", "b");
  assert.equal(run.state.peers["a"]!.links!["b"]!.rttMs, 40);
});

Deno.test("probes: a newcomer measures a few links only, to those with the fewest", () => {
  const run = new RunHarness({ min_peers: 9 });
  const crowd = ["a", "b", "c", "d", "e", "f"];
  newcomer(run, "a");
  for (const [i, id] of crowd.entries()) {
    if (i > 0) newcomer(run, id);
    for (let round = 0; round < crowd.length; round++) {
      for (const { peers: [x, y] } of [...run.state.probing.pairs]) probed(run, x, y);
    }
  }
  const links = (id: string) => Object.keys(run.state.peers[id]!.links ?? {}).length;
  // e takes all four that are there before it, f leaves out the last of five equals.
  assert.deepEqual(crowd.map(links), [5, 5, 5, 5, 4, PARTNERS_MAX]);
  assert.equal(new Set(asked(run)).size, asked(run).length, "a link was measured twice");
});

Deno.test("probes: paused, leaving and gone peers are left alone, and a pair without an answer is given up", () => {
  const run = new RunHarness({ min_peers: 5 });
  for (const id of ["a", "b"]) newcomer(run, id);
  probed(run, "a", "b");
  run.say("a", { type: "pause", paused: true });
  newcomer(run, "c");
  assert.deepEqual(asked(run).slice(2), ["c-b", "b-c"]);
  run.say("b", { type: "probed", peer: "c" });
  assert.ok(!admitted(run).includes("c"), "one end has still to tell");
  run.say("c", { type: "probed", peer: "b" });
  assert.deepEqual([admitted(run), run.state.peers["c"]!.links], [["a", "b", "c"], undefined]);
  newcomer(run, "d");
  run.gone(run.state.probing.pairs[0]!.peers.find((id) => id !== "d")!);
  assert.equal(run.state.probing.pairs.length, 1, "the next one is asked");
  tick(run, PAIR_MS);
  assert.deepEqual([run.state.probing.pairs, run.state.probing.waiting], [[], {}]);
});

Deno.test("probes: an answer that nobody asked for, or of another link, changes nothing", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.hello("c");
  newcomer(run, "a");
  const link = { rttMs: 1, upBytesPerS: 1, path: "direct" as const };
  run.say("a", { type: "probed", peer: "b", link: { peer: "b", ...link } });
  newcomer(run, "b");
  run.say("a", { type: "probed", peer: "a", link: { peer: "a", ...link } });
  run.say("a", { type: "probed", peer: "b", link: { peer: "c", ...link } });
  run.say("a", { type: "probed", peer: "b", link: { peer: "b", ...link } });
  assert.equal(run.state.peers["a"]!.links, undefined);
  assert.deepEqual(admitted(run), ["a"]);
});

Deno.test("probes: a link that has become known meanwhile is not measured, and whoever is in the run measures none for itself", () => {
  const run = new RunHarness({ min_peers: 3 });
  for (const id of ["a", "b", "c"]) newcomer(run, id);
  const known = { rttMs: 30, upBytesPerS: 1e6, path: "direct" as const };
  run.say("c", { ...HEARTBEAT, links: [{ peer: "b", ...known }] });
  probed(run, "a", "b");
  probed(run, "a", "c");
  assert.deepEqual(asked(run), ["b-a", "a-b", "c-a", "a-c"]);
  assert.deepEqual(admitted(run), ["a", "b", "c"]);
  newcomer(run, "d");
  run.say("a", { type: "measured", blockMs: 7, memoryBytes: 1e9, probes: true });
  assert.deepEqual([run.state.peers["a"]!.blockMs, Object.keys(run.state.probing.waiting)], [7, ["d"]]);
});

Deno.test("probes: later one unknown link a minute is measured, and one that is closed and long ago", () => {
  const run = new RunHarness({ min_peers: 3, n_stage: 1 });
  for (const id of ["a", "b", "c"]) newcomer(run, id);
  probed(run, "a", "b");
  tick(run, PATIENCE_MS);
  run.ready();
  const before = asked(run).length;
  run.state.probing.pairs = [];
  tick(run, AGAIN_MS);
  assert.deepEqual(asked(run).slice(before), ["c-a", "a-c"]);
  probed(run, "a", "c");
  tick(run, AGAIN_MS - 1);
  assert.equal(asked(run).length, before + 2, "too soon");
  tick(run, 1);
  assert.deepEqual(asked(run).slice(before + 2), ["b-c", "c-b"]);
  probed(run, "b", "c");
  for (const [id, { links = {} }] of Object.entries(run.state.peers)) {
    // What is open is measured by what it carries, however long ago that was told.
    for (const other of Object.keys(links)) {
      const open = [id, other].includes("a");
      Object.assign(links[other]!, open ? { open, at: run.now - 2 * STALE_MS } : { open });
    }
  }
  tick(run, AGAIN_MS);
  assert.equal(asked(run).length, before + 4, "all are known");
  const [there, back] = [run.state.peers["b"]!.links!["c"]!, run.state.peers["c"]!.links!["b"]!];
  there.at = back.at = run.now + AGAIN_MS - STALE_MS + 1;
  tick(run, AGAIN_MS);
  assert.equal(asked(run).length, before + 4, "that is not long ago");
  tick(run, AGAIN_MS);
  assert.deepEqual(asked(run).slice(before + 4), ["b-c", "c-b"]);
});
