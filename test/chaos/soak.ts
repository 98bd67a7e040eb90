// A run that is hurt again and again, at times and in ways drawn from a seeded generator. Says what happened; judges nothing.
import { Cluster } from "./cluster.ts";
import { endure, type Fault, FAULTS, isPossible } from "./faults.ts";
import { compareWithFaultless, type Comparison } from "./reference.ts";
import { messageOf } from "../../peer/wire/errors.ts";
import { stallMs } from "./stall.ts";
import { pick, type Random } from "../support/random.ts";

/** Peers that are left to train on whatever the fault takes. */
const KEEP = 2;
/** Steps before the first fault and after the last: what is normal must be known. */
const CALM_STEPS = 26;

export interface SoakOptions {
  minutes: number;
  /** Seconds from one fault to the next; a fault that takes longer to recover from delays the next one. */
  every: number;
  peers: number;
  tabs: number;
  random: Random;
  network: boolean;
  signal: AbortSignal;
  note(text: string): void;
}

export interface Injury {
  kind: string;
  /** Null if the run had no commits before and after it. */
  stallMs: number | null;
  /** Steps that were committed a second time because of it. */
  stepsLost: number;
  mayLose: boolean;
}

export interface SoakResult {
  seconds: number;
  injuries: Injury[];
  /** Null if the run did not come to its end. */
  comparison: Comparison | null;
  /** What the run did not recover from, in words; null if it recovered from everything. */
  failure: string | null;
  /** Peers that ended by themselves and not cleanly, each with its last words. */
  peerFailures: string[];
}

export async function soak(options: SoakOptions): Promise<SoakResult> {
  const { peers, tabs, network, note } = options;
  const begun = performance.now();
  await using cluster = await Cluster.start({ network });
  for (let i = 0; i < peers; i++) await cluster.addPeer();
  for (let i = 0; i < tabs; i++) await cluster.addTab();
  await cluster.settled();
  note(`${peers} Deno peers and ${tabs} tabs train; step ${cluster.step}`);
  const wounds: Wound[] = [];
  const failure = await hurt(cluster, wounds, options).then(() => null, messageOf);
  const commits = await cluster.commitTimes();
  const comparison = failure === null ? await finish(cluster, note) : null;
  return {
    ...{
      failure,
      comparison,
      peerFailures: [...cluster.failures, ...cluster.addonCrashes],
      seconds: (performance.now() - begun) / 1000,
    },
    injuries: wounds.map(({ departure, ...rest }) => ({ ...rest, stallMs: stallMs(commits, departure) })),
  };
}

async function finish(cluster: Cluster, note: (text: string) => void): Promise<Comparison> {
  const { checkpoint } = await cluster.finish();
  note("the run is over; the same steps are now done again in one process");
  return await compareWithFaultless(checkpoint);
}

type Wound = Omit<Injury, "stallMs"> & { departure: Awaited<ReturnType<typeof endure>> };

/** Adds to `wounds` as it goes, so that a run which does not recover still tells what it had survived. */
async function hurt(cluster: Cluster, wounds: Wound[], options: SoakOptions): Promise<void> {
  const { minutes, every, random, signal, note } = options;
  const over = performance.now() + minutes * 60_000;
  await cluster.more(CALM_STEPS);
  while (performance.now() < over && !signal.aborted) {
    const next = performance.now() + every * 1000;
    // A peer that failed by itself is a failure of the soak, but the rest of it should be as hard as planned.
    while (cluster.peers.length < options.peers) await cluster.addPeer();
    const fault = drawn(cluster, random);
    const lost = cluster.stepsLost;
    const before = cluster.step;
    note(`${fault.name} at step ${before}`);
    const departure = await endure(cluster, fault, random);
    const stepsLost = cluster.stepsLost - lost;
    wounds.push({ kind: fault.name, stepsLost, mayLose: fault.mayLose ?? false, departure });
    note(
      `  everybody trains again at step ${cluster.step}; ${stepsLost} steps lost`,
    );
    await pause(Math.min(next, over) - performance.now(), signal);
  }
  await cluster.more(CALM_STEPS);
}

function drawn(cluster: Cluster, random: Random): Fault {
  const possible = FAULTS.filter((fault) => isPossible(fault, cluster, KEEP));
  return pick(random, possible)!;
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (ms <= 0 || signal.aborted) return resolve();
    const timer = setTimeout(end, ms);
    function end(): void {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    }
    signal.addEventListener("abort", end);
  });
}
