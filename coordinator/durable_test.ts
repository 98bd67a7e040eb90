// What a view's record remembers of its members: everything that a plan needs of a peer that comes back to a restarted coordinator.
import assert from "node:assert/strict";
import { RunHarness } from "../test/support/run_harness.ts";
import { membersOf } from "./durable.ts";

Deno.test("durable: a member's measured times are remembered, those of a second size too, and nobody without a ticket", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.join("a", { blockMs: 12, fixedMs: 3, memoryBytes: 1e9, gpuOptimizer: true });
  run.join("b", { blockMs: 8, memoryBytes: 2e9 });
  run.join("c");
  const tickets = new Map(["a", "b"].map((id) => [id, { ticket: `of ${id}`, incarnation: 1 }]));
  const members = membersOf(run.state.view!, run.state.peers, tickets);
  const about = { runtime: "deno", adapter: "none", engine: "cpu", incarnation: 1 };
  const wanted = [
    {
      ...about,
      id: "a",
      name: "a",
      ticket: "of a",
      blockMs: 12,
      fixedMs: 3,
      memoryBytes: 1e9,
      gpuOptimizer: true,
    },
    { ...about, id: "b", name: "b", ticket: "of b", blockMs: 8, memoryBytes: 2e9, gpuOptimizer: false },
  ];
  assert.deepEqual(members.toSorted((a, b) => a.id < b.id ? -1 : 1), wanted);
});
