// The published schedules on the peers of a plan: the papers' numbers where the peers are equal, reasons where they cannot be.
import assert from "node:assert/strict";
import { equalPeers } from "../../test/support/swarm_requests.ts";
import { plan as planFor } from "./planner.ts";
import { publishedSchedules } from "./planner_published.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";

/** Four peers that are equal but for the head, one layer each, on links that cost nothing. */
function fourStages(room: number, link: PlanRequest["link"]): { request: PlanRequest; plan: Plan } {
  const config = { n_stage: 4, gradient_accumulation_steps: 8, shadows: false };
  const request = { ...equalPeers([room, room, room, room], config, { vocab: 1 }), link };
  const plan = planFor(request);
  assert.ok(plan.kind === "plan");
  return { request, plan };
}

const FREE: PlanRequest["link"] = () => ({ latency: 0, bytesPerS: Infinity });

Deno.test("on equal peers without latency the makespans are those of the golden table", () => {
  const { request, plan } = fourStages(9, FREE);
  const rows = new Map(publishedSchedules(request, plan).map((row) => [row.name, row]));
  // In units of F = B = W = 20 ms; the head of a one-word vocabulary weighs next to nothing.
  for (
    const [name, units] of [["gpipe", 33], ["1f1b", 33], ["zb-h1", 27], ["zb-h2", 27], [
      "chimera",
      30,
    ]] as const
  ) {
    const seconds = rows.get(name)!.seconds!;
    assert.ok(Math.abs(seconds / (0.02 * units) - 1) < 0.01, `${name} takes ${seconds}`);
  }
  assert.equal(rows.get("zb-v")!.seconds, null);
  assert.match(rows.get("zb-v")!.reason!, /8 stages need as many layers, there are 4/);
});

Deno.test("a second stage of weights that does not fit rules the bidirectional schedules out, by the peer's name", () => {
  const { request, plan } = fourStages(1, FREE);
  const rows = new Map(publishedSchedules(request, plan).map((row) => [row.name, row]));
  assert.match(rows.get("chimera")!.reason!, /^tab \d would need \d+ MB and offers \d+ MB$/);
  assert.match(rows.get("dualpipe")!.reason!, /would need/);
  // All eight micro-batches at once, where the plan keeps two.
  assert.match(rows.get("gpipe")!.reason!, /would need/);
  assert.equal(fourStages(9, FREE).plan.stages.length, 4);
});

Deno.test("sizes that a schedule cannot have are its reason", () => {
  const request = equalPeers([9, 9, 9], { n_stage: 3, gradient_accumulation_steps: 7 });
  const plan = planFor(request);
  assert.ok(plan.kind === "plan");
  const reasons = new Map(publishedSchedules(request, plan).map(({ name, reason }) => [name, reason]));
  assert.match(reasons.get("chimera")!, /P even/);
  assert.match(reasons.get("interleaved, 2 chunks")!, /divisible by P/);
  assert.equal(reasons.get("zb-h1"), null);
});

Deno.test("each peer's own speed and links count", () => {
  const { request, plan } = fourStages(9, FREE);
  const seconds = (of: PlanRequest) =>
    publishedSchedules(of, plan).find(({ name }) => name === "1f1b")!.seconds!;
  const far = { ...request, link: () => ({ latency: 0.1, bytesPerS: Infinity }) };
  assert.ok(seconds(far) > seconds(request) + 0.6);
  const [first, ...others] = request.peers;
  const slow = first!.engines.map((speed) => ({ ...speed, forward: 0.2 }));
  assert.ok(
    seconds({ ...request, peers: [{ ...first!, engines: slow }, ...others] }) >
      seconds(request) + 1.2,
  );
});
