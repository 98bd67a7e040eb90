// Many simulated runs over several workers: deals the seeds out, adds the results up. The same seeds give the same sums, however
// many workers there are. Also says whether the scenario "states" reached every state it names.
import { COORDINATOR_STATES, PEER_STATES } from "./probe.ts";
import { add, emptyTally, type Tally } from "./tally.ts";
import type { Task } from "./worker.ts";

/** Seeds in one task: long enough that messages cost nothing, short enough that all workers end together. */
const TASK_SEEDS = 25;

export interface RunOptions {
  scenarios: readonly string[];
  firstSeed: number;
  /** Worlds in all; every scenario plays its share of them, each from firstSeed on. */
  seeds: number;
  jobs: number;
  /** Deal out nothing more once something was violated. */
  failFast?: boolean;
  onTally?: (tally: Tally, worldsDone: number) => void;
}

/** One tally for each scenario, in their order. */
export async function runSeeds(options: RunOptions): Promise<Tally[]> {
  const tallies = new Map(options.scenarios.map((name) => [name, emptyTally(name)]));
  const tasks = tasksOf(options);
  const workers = Array.from({ length: Math.min(options.jobs, tasks.length) }, startWorker);
  let done = 0;
  try {
    await Promise.all(workers.map(async (worker) => {
      for (let task = tasks.shift(); task !== undefined; task = tasks.shift()) {
        const tally = await perform(worker, task);
        add(tallies.get(task.scenario)!, tally);
        done += tally.worlds;
        options.onTally?.(tally, done);
        if (options.failFast && tally.violations > 0) tasks.length = 0;
      }
    }));
  } finally {
    for (const worker of workers) worker.terminate();
  }
  return [...tallies.values()];
}

/** Seeds of each scenario: the total shared evenly, the first ones get one more. */
export function tasksOf({ scenarios, firstSeed, seeds }: RunOptions): Task[] {
  return scenarios.flatMap((scenario, i) => {
    const own = Math.floor(seeds / scenarios.length) + (i < seeds % scenarios.length ? 1 : 0);
    const tasks: Task[] = [];
    for (let from = 0; from < own; from += TASK_SEEDS) {
      tasks.push({ scenario, firstSeed: firstSeed + from, seeds: Math.min(TASK_SEEDS, own - from) });
    }
    return tasks;
  });
}

/** States of "states" in which nothing was crashed; only a run of enough seeds from the first on reaches all. */
export function statesMissed(tally: Tally): string[] {
  const wanted = [
    ...PEER_STATES.map((state) => `crash-in ${state}`),
    ...COORDINATOR_STATES.map((state) => `coordinator-in ${state}`),
  ];
  return wanted.filter((state) => tally.hits[state] === undefined);
}

/** Seeds after which "states" has tried each state once. */
export const STATE_COUNT = PEER_STATES.length + COORDINATOR_STATES.length;

function startWorker(): Worker {
  return new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
}

function perform(worker: Worker, task: Task): Promise<Tally> {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<Tally>) => resolve(data);
    worker.onerror = (event) => {
      event.preventDefault();
      reject(new Error(`a worker failed in ${JSON.stringify(task)}: ${event.message}`));
    };
    worker.postMessage(task);
  });
}
