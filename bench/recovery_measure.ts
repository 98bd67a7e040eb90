// Measures departures of real peers from a real run, and what redundancy costs a run that nobody leaves. Starts processes,
// judges nothing; recovery.ts prints. Everything runs on this machine's loopback, so both sides of a comparison share its load.
import { Cluster } from "../test/chaos/cluster.ts";
import { endure, type FaultName, faultNamed } from "../test/chaos/faults.ts";
import { type Departure, quantile, stallMs } from "../test/chaos/stall.ts";
import { messageOf } from "../peer/wire/errors.ts";
import { seededRandom } from "../test/support/random.ts";

/** Departures that can be measured, by the name of the fault that makes them. */
export const KINDS = {
  "killed-deno": "kill",
  "killed-tab": "tab crash",
  "goodbye-tab": "tab goodbye",
  "left-deno": "leave",
  "left-tab": "tab leave",
  "frozen-deno": "freeze",
} as const satisfies Record<string, FaultName>;
export type Kind = keyof typeof KINDS;

/** Two stages; three peers, so that every departure meets a stage with two computing holders or one with a shadow. */
const DENO_PEERS = 2;
const TABS = 1;
/** Commits before a departure, from which the normal gap is known. */
const CALM_STEPS = 26;

export interface Measured {
  kind: Kind;
  /** Null if the run had ended before its next commits. */
  stallMs: number | null;
  /** From the departure to the coordinator's note of it. */
  noticedMs: number;
  lostSteps: number;
  /** Micro-batches that others were given because of it, as the coordinator tells. */
  reassigned: number;
}

export interface StallOptions {
  kinds: readonly Kind[];
  /** Of each kind. */
  departures: number;
  seed: number;
  note(text: string): void;
}

export interface StallResult {
  departures: Measured[];
  normalStepMs: number;
  /**
   * What the coordinator counts of departures, recovery and snapshots (COUNTED), at the end of the run. The place for bytes
   * of snapshots with and without chunk hashing: they appear here as soon as the coordinator counts them.
   */
  counters: Record<string, number>;
  /** What the run did not recover from; the departures before it are told all the same. */
  failure: string | null;
}

/** The kinds take turns, so that a machine that gets slower or faster treats all alike. */
export async function measureStalls(options: StallOptions): Promise<StallResult> {
  await using cluster = await Cluster.start();
  for (let i = 0; i < DENO_PEERS; i++) await cluster.addPeer();
  for (let i = 0; i < TABS; i++) await cluster.addTab();
  await cluster.settled();
  const seen: Seen[] = [];
  const failure = await letGo(cluster, seen, options).then(() => null, messageOf);
  const commits = await cluster.commitTimes();
  return {
    departures: seen.map(({ departure, ...told }) => ({
      ...{ ...told, stallMs: stallMs(commits, departure) },
      noticedMs: departure.untilMs - departure.fromMs,
    })),
    normalStepMs: quantile(gapsOf(commits), 0.5) ?? 0,
    ...{ counters: failure === null ? await recoveryCounters(cluster) : {}, failure },
  };
}

type Seen = Pick<Measured, "kind" | "lostSteps" | "reassigned"> & { departure: Departure };

async function letGo(cluster: Cluster, seen: Seen[], options: StallOptions): Promise<void> {
  const { kinds, departures, seed, note } = options;
  const random = seededRandom(seed);
  for (let round = 0; round < departures; round++) {
    for (const kind of kinds) {
      await cluster.more(CALM_STEPS);
      const [lost, from] = [cluster.stepsLost, cluster.events.length];
      note(`departure ${round + 1} of ${departures}: ${kind}`);
      const departure = await endure(cluster, faultNamed(KINDS[kind]), random);
      const told = cluster.events.slice(from).filter((line) => line.event === "departure");
      const reassigned = told.reduce((sum, line) => sum + Number(line.reassigned), 0);
      seen.push({ kind, departure, lostSteps: cluster.stepsLost - lost, reassigned });
    }
  }
  await cluster.more(CALM_STEPS);
}

/** Prometheus lines of these names are reported; a coordinator that does not count them has none. */
const COUNTED = /^(shoal_(?:recovery|recomputed|departure|snapshot|retained)\S+) (\S+)$/gm;

async function recoveryCounters(cluster: Cluster): Promise<Record<string, number>> {
  const response = await fetch(new URL("/metrics", cluster.joinLink), {
    headers: { authorization: `Bearer ${new URL(cluster.adminLink).hash.slice(1)}` },
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`/metrics answers ${response.status}: ${text.slice(0, 200)}`);
  return Object.fromEntries([...text.matchAll(COUNTED)].map(([, name, value]) => [name!, Number(value)]));
}

/** One level of redundancy: how the run is configured, how many peers it needs, and what it is compared with. */
export interface Arm {
  name: string;
  /** The arm that differs in nothing but this level. */
  base: string;
  peers: number;
  config: Record<string, unknown>;
}

/** Steps between snapshots where they are measured: the most frequent that the run itself would choose. */
const SNAPSHOT_STEPS = 20;

export const ARMS: readonly Arm[] = [
  { name: "none", base: "none", peers: 2, config: { shadows: false, parity: false } },
  { name: "shadow", base: "none", peers: 2, config: { shadows: true, parity: false } },
  { name: "replica", base: "none", peers: 4, config: { shadows: false, parity: false } },
  // Snapshots with parity need keepers beside the holders of a stage.
  {
    ...{ name: "replica + parity", base: "replica", peers: 4 },
    config: { shadows: false, parity: true, snapshot_interval: SNAPSHOT_STEPS },
  },
];

/** The demo's model with its micro-batches: what an optimizer step costs beside computing depends on the tokens per step. */
const OVERHEAD_CONFIG = {
  ...{ n_layer: 4, n_head: 4, n_kv_head: 2, n_embd: 64, n_inner: 192, block_size: 64, batch_size: 8 },
  ...{ gradient_accumulation_steps: 4, eval_interval: 1_000_000, snapshot_interval: 10_000 },
  ...{ codec_forward: "i8b64", codec_backward: "i8b64" },
};
/** The first steps compile shaders and fill pipelines. */
const WARM_STEPS = 5;

export interface OverheadOptions {
  arms: readonly Arm[];
  rounds: number;
  steps: number;
  note(text: string): void;
}

export interface ArmResult {
  name: string;
  base: string;
  peers: number;
  /** Median gap between commits, one per round. */
  stepMs: number[];
}

/** Arms alternate, every other round in reverse, so that a drift of the machine favours none. */
export async function measureOverhead({ arms, rounds, steps, note }: OverheadOptions): Promise<ArmResult[]> {
  const results = arms.map(({ name, base, peers }): ArmResult => ({ name, base, peers, stepMs: [] }));
  for (let round = 0; round < rounds; round++) {
    const order = arms.map((_, i) => i);
    if (round % 2 === 1) order.reverse();
    for (const i of order) {
      note(`round ${round + 1} of ${rounds}: ${arms[i]!.name}`);
      results[i]!.stepMs.push(await stepTime(arms[i]!, steps));
    }
  }
  return results;
}

async function stepTime(arm: Arm, steps: number): Promise<number> {
  const config = { ...OVERHEAD_CONFIG, ...arm.config, min_peers: arm.peers };
  await using cluster = await Cluster.start({ engine: "wgsl", config });
  await Promise.all(Array.from({ length: arm.peers }, () => cluster.addPeer()));
  await cluster.settled();
  await cluster.more(WARM_STEPS);
  const first = cluster.steps.length - 1;
  await cluster.more(steps);
  const commits = await cluster.commitTimes();
  return quantile(gapsOf(commits.slice(first)), 0.5)!;
}

function gapsOf(times: readonly number[]): number[] {
  return times.slice(1).map((at, i) => at - times[i]!);
}
