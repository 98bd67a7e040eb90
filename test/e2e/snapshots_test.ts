// Both holders of a stage are killed at once: real processes, kill -9. The run goes back to the snapshot that the other stage's
// peers keep in their memory, says how many steps that costs, and ends with the weights and moments of a run without faults.
import assert from "node:assert/strict";
import { join } from "node:path";
import { Cluster } from "../chaos/cluster.ts";
import { compareWithFaultless } from "../chaos/reference.ts";
import { type JsonLine, PATIENCE_MS, shoalProc } from "../chaos/process.ts";
import type { RunStatus } from "../../peer/wire/status.ts";

/** Steps between snapshots: so many that the restored one is recognised, so few that the test is short. */
const INTERVAL = 25;
/** How often the log is looked at. */
const POLL_MS = 200;
/** A few kilobytes are on disk long before. */
const SAVING_MS = 1_000;

/**
 * Nothing but peers' memory can bring a stage back: the coordinator collects no states of its own in so few steps. The order has
 * a placement of its own, so that every stage has two holders whatever the planner makes of the peers' speeds.
 */
const CONFIG = {
  ...{ snapshot_interval: INTERVAL, min_peers: 4, eval_interval: 1_000_000, n_stage: 2, schedule: "1f1b" },
};

Deno.test("snapshots: both holders of a stage are killed at once; restored from peers, the cost told, same bits", async () => {
  await using cluster = await Cluster.start({ config: CONFIG });
  for (let i = 0; i < 4; i++) await cluster.addPeer();
  await cluster.event("a snapshot with peers", (line) => line.event === "snapshot");
  await cluster.more(3);
  const from = cluster.events.length;
  const victims = holdersOfSomeStage(await statusOf(cluster));
  assert.equal(victims.length, 2);
  for (const name of victims) {
    const proc = cluster.release(cluster.peers.find((peer) => peer.name === name)!);
    proc.signal("SIGKILL");
  }
  const back = await cluster.event("a rollback", (line) => line.event === "rollback", from);
  const kept = cluster.events.filter((line) => line.event === "snapshot").map((line) => Number(line.step));
  assert.ok(kept.includes(Number(back.step)), `back to ${back.step}, peers kept ${kept}`);
  assert.ok(Number(back.steps_redone) < 2 * INTERVAL, `${back.steps_redone} steps were done again`);
  for (let i = 0; i < 2; i++) await cluster.addPeer();
  await cluster.more(INTERVAL);
  const { checkpoint } = await cluster.finish();
  assert.deepEqual(cluster.failures, []);
  assert.equal(cluster.stepsLost, Number(back.steps_redone), "the count is not what was committed twice");
  assert.equal(rollbacks(cluster.events).length, 1);
  const { step, equal } = await compareWithFaultless(checkpoint);
  assert.ok(equal, `after ${step} steps the state differs from that of a run without faults`);
});

Deno.test("snapshots: a peer that is killed and started again offers the state on its disk", async () => {
  await using cluster = await Cluster.start({ config: CONFIG });
  const args = ["--join", cluster.joinLink, "--engine", "cpu", "--state_dir", join(cluster.folder, "states")];
  const about = { name: "with a folder", guardian: cluster.guardian };
  const first = shoalProc("peer", args, about);
  for (let i = 0; i < 3; i++) await cluster.addPeer();
  await cluster.event("a snapshot with peers", (line) => line.event === "snapshot");
  // Only the newest snapshot's states are of use, so there must be no newer one until the peer is back.
  await press(cluster, "pause");
  await cluster.event("a pause", (line) => line.event === "state" && line.state === "paused");
  await new Promise((resolve) => setTimeout(resolve, SAVING_MS));
  first.signal("SIGKILL");
  await first.ended;
  const again = shoalProc("peer", args, about);
  const told = await eventLog(cluster, (text) => text.includes("still has stage"));
  assert.match(told, /^deno-\d+ still has stage [12] of step \d+$/);
  await press(cluster, "resume");
  await cluster.more(1);
  await cluster.finish();
  await again.ended;
});

async function press(cluster: Cluster, action: "pause" | "resume"): Promise<void> {
  const authorization = `Bearer ${new URL(cluster.adminLink).hash.slice(1)}`;
  const init = { method: "POST", headers: { authorization }, body: JSON.stringify({ action }) };
  const response = await fetch(new URL("/api/control", cluster.adminLink), init);
  assert.equal(response.status, 200, await response.text());
}

/** A line of the run's log as the admin page shows it. */
async function eventLog(cluster: Cluster, holds: (text: string) => boolean): Promise<string> {
  for (const late = AbortSignal.timeout(PATIENCE_MS); !late.aborted;) {
    const found = (await statusOf(cluster)).events.find((line) => holds(line.text));
    if (found !== undefined) return found.text;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error("the log never said so");
}

function rollbacks(events: readonly JsonLine[]): JsonLine[] {
  return events.filter((line) => line.event === "rollback");
}

async function statusOf(cluster: Cluster): Promise<RunStatus> {
  const headers = { authorization: `Bearer ${new URL(cluster.adminLink).hash.slice(1)}` };
  return await (await fetch(new URL("/api/status", cluster.adminLink), { headers })).json();
}

/** Names of the processes that hold the stage with the fewest holders; a peer's id tells its place in the order of joining. */
function holdersOfSomeStage(status: RunStatus): string[] {
  const order = status.peers.map((peer) => peer.id).toSorted((a, b) => numberOf(a) - numberOf(b));
  const [stage] = status.stages.toSorted((a, b) => a.replicas.length - b.replicas.length);
  return stage!.replicas.map(({ peer }) => `peer ${order.indexOf(peer) + 1}`);
}

function numberOf(id: string): number {
  return Number(id.split("-").at(-1));
}
