// The same question without anything set: peers are processes that compute with the true engine and talk over WebRTC, each in a
// network namespace whose frames a switch delays. Both times are the coordinator's own, as its log tells them: what a step took,
// and what the simulator had made of the operations and links that the peers measured. Needs Linux and root.
import { join } from "node:path";
import { Cluster } from "../test/chaos/cluster.ts";
import { Network } from "../test/chaos/network.ts";
import type { ScheduleId } from "../peer/wire/run.ts";
import { aligned, median } from "./support.ts";

const PEERS = 3;
/** Peers sit close to their coordinator and far from one another, as in the other rows. */
const DELAY = { delayMs: 50, jitterMs: 0, loss: 0 };
const SCHEDULES: readonly ScheduleId[] = ["dynamic", "1f1b"];
/** Operations take some milliseconds in double precision, so that processes which share two cores seldom collide. */
const CONFIG = {
  ...{ n_layer: PEERS, n_stage: PEERS, min_peers: PEERS, n_head: 2, n_kv_head: 1, n_embd: 32, n_inner: 64 },
  ...{ block_size: 16, batch_size: 2, gradient_accumulation_steps: 8, eval_interval: 1_000_000 },
  ...{ shadows: false, parity: false, snapshot_interval: 10_000, checkpoint_interval: 1_000_000 },
};
/** Links and operations are known to the coordinator by then. */
const WARM_STEPS = 10;

export interface RealRow {
  schedule: ScheduleId;
  peers: number;
  delayMs: number;
  stepMs: number;
  predictedMs: number;
  error: number;
  bubble: number;
  /** Steps of which both times are known. */
  steps: number;
}

/** A line of metrics.jsonl about a step that was traced. */
interface StepLine {
  step: number;
  step_s: number;
  predicted_s: number;
  bubble: number;
}

/** Rows, or one sentence why this machine cannot make such a network. */
export async function measureReal(steps: number, note: (text: string) => void): Promise<RealRow[] | string> {
  const problem = await Network.problem();
  if (problem !== null) return problem;
  const rows: RealRow[] = [];
  for (const schedule of SCHEDULES) {
    note(`real processes, ${DELAY.delayMs} ms: ${schedule}`);
    rows.push(await measureOne(schedule, steps));
  }
  return rows;
}

async function measureOne(schedule: ScheduleId, steps: number): Promise<RealRow> {
  await using cluster = await Cluster.start({
    engine: "cpu",
    network: true,
    config: { ...CONFIG, schedule },
  });
  // Before anybody joins: links are probed then, and a delay that sets in during a probe would pass for a slow line.
  const members = await cluster.reserve(PEERS);
  for (const from of members) {
    for (const to of members) if (from !== to) await cluster.network!.rule(from, to, DELAY);
  }
  for (let i = 0; i < PEERS; i++) await cluster.addPeer();
  await cluster.settled();
  await cluster.more(WARM_STEPS);
  const first = cluster.step;
  await cluster.more(steps);
  const text = await Deno.readTextFile(join(cluster.runFolder, "metrics.jsonl"));
  return rowOf(schedule, tracedSteps(text).filter(({ step }) => step > first));
}

/** Not every step is traced, and none before the coordinator knows the peers' times. */
export function tracedSteps(text: string): StepLine[] {
  const lines = text.split("\n").filter((line) => line.startsWith("{") && line.endsWith("}"));
  return lines.map((line) => JSON.parse(line)).filter((line) =>
    line.event === "step" && line.predicted_s !== undefined && line.step_s !== undefined
  );
}

export function rowOf(schedule: ScheduleId, lines: readonly StepLine[]): RealRow {
  const stepMs = 1000 * median(lines.map((line) => line.step_s));
  const predictedMs = 1000 * median(lines.map((line) => line.predicted_s));
  return {
    ...{
      schedule,
      peers: PEERS,
      delayMs: DELAY.delayMs,
      stepMs,
      predictedMs,
      error: stepMs / predictedMs - 1,
    },
    ...{ bubble: median(lines.map((line) => line.bubble)), steps: lines.length },
  };
}

export function realTable(rows: readonly RealRow[]): string {
  const cells = rows.map((row) => [
    ...[`${row.delayMs} ms`, row.schedule, row.stepMs.toFixed(0), row.predictedMs.toFixed(0)],
    ...[`${(100 * row.error).toFixed(1)} %`, `${(100 * row.bubble).toFixed(1)} %`, String(row.steps)],
  ]);
  return aligned([["processes", "schedule", "step ms", "simulated", "error", "bubble", "steps"], ...cells])
    .join("\n");
}
