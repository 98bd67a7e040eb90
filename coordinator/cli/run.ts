// `shoal run`: a whole run on this computer with the caller's own configuration: a coordinator, its Deno peers, a progress bar, and
// a checkpoint at the end, also after Ctrl-C. Not the demo, which shows a pipeline; further computers may join by the link.
import { startCoordinator } from "../main.ts";
import { endWithCheckpoint, newRunOptions, type RunOptions } from "./coordinate.ts";
import { EventWatch, PEERS_MAX } from "./demo.ts";
import { createDemoPeers, type DemoPeers } from "./demo_peers.ts";
import { aborted, listenForInterrupts } from "./interrupts.ts";
import { engineFlag, integerFlag, type VerbOptions } from "./options.ts";
import { processReporter } from "./report.ts";

export interface RunPlan {
  run: RunOptions;
  peers: number;
}

/** What to start, out of the flags; training begins when all of its own peers are there. */
export async function planRun(options: VerbOptions): Promise<RunPlan> {
  const peers = integerFlag(options, "peers", { absent: 1, min: 1, max: PEERS_MAX });
  const run = await newRunOptions({ ...options, config: { min_peers: peers, ...options.config } });
  return { run: { ...run, operator: options.flags.operator ?? "this computer" }, peers };
}

/** Resolves to the exit code: 0 finished or stopped with a checkpoint, 1 failed. */
export async function runHere(options: VerbOptions): Promise<number> {
  const plan = await planRun(options);
  const json = options.flags.json !== undefined;
  const reporter = processReporter({ json, maxIters: plan.run.config.max_iters });
  let peers: DemoPeers | null = null;
  const interrupts = listenForInterrupts(() => peers?.kill());
  const events = new EventWatch(reporter);
  const coordinator = await startCoordinator({ ...plan.run, onEvent: (line) => events.take(line) });
  try {
    events.announceLinks(coordinator);
    peers = createDemoPeers({
      ...{ joinLink: coordinator.joinLink, deno: plan.peers, tabs: 0, engine: engineFlag(options) },
      onLoss: (text, left) => events.lost(text, left),
    });
    const starting = peers.start();
    starting.catch(() => {});
    const failed = starting.then(() => events.failure);
    await Promise.race([coordinator.done, failed, events.failure, aborted(interrupts.signal)]);
    if (interrupts.signal.aborted) await endWithCheckpoint(coordinator, reporter);
    return coordinator.shell.core.state.status === "finished" ? 0 : 1;
  } finally {
    await coordinator.stop(interrupts.signal.aborted ? "stopped by its operator" : "the run is finished");
    await peers?.stop();
    interrupts.close();
  }
}
