// `shoal demo`: a whole run on this machine: coordinator in this process, Deno peers and headless tabs beside it.
// The same parts as a real run, wired together; nothing here is a shortcut past the network.
import { DEFAULT_CONFIG } from "../../peer/model/config.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { type CoordinatorEventLine, startCoordinator } from "../main.ts";
import { newRunOptions, type RunOptions } from "./coordinate.ts";
import { createDemoPeers, type DemoPeers } from "./demo_peers.ts";
import { aborted, type Interrupts, listenForInterrupts } from "./interrupts.ts";
import { engineFlag, integerFlag, type VerbOptions } from "./options.ts";
import type { EngineWish } from "../../peer/wire/status.ts";
import { processReporter, type Reporter } from "./report.ts";

/** One machine computes for all of them, so more only share the same cores. */
export const PEERS_MAX = 32;

export interface DemoPlan {
  run: RunOptions;
  deno: number;
  tabs: number;
  /** Of all its peers; undefined = what each finds to be the quickest. */
  engine: EngineWish | undefined;
  keep: boolean;
}

/** What to start, out of the flags; the run waits for all of the demo's peers unless --min_peers says otherwise. */
export async function planDemo(options: VerbOptions): Promise<DemoPlan> {
  const deno = integerFlag(options, "peers-deno", { absent: 2, min: 0, max: PEERS_MAX });
  const tabs = integerFlag(options, "tabs", { absent: 1, min: 0, max: PEERS_MAX });
  // A model this small would train faster whole on each peer; the demo is there to show a pipeline.
  const layers = Number(options.config.n_layer ?? DEFAULT_CONFIG.n_layer);
  const pipeline = options.flags.config === undefined ? { n_stage: Math.min(deno + tabs, layers) } : {};
  const asked = { min_peers: Math.max(1, deno + tabs), ...pipeline };
  const run = await newRunOptions({ ...options, config: { ...asked, ...options.config } });
  const engine = engineFlag(options);
  const operator = options.flags.operator ?? "the demo on this computer";
  return { run: { ...run, operator }, deno, tabs, engine, keep: options.flags.keep !== undefined };
}

/** Runs the demo; resolves to the exit code: 0 finished or stopped cleanly, 1 failed. */
export async function demo(options: VerbOptions): Promise<number> {
  const plan = await planDemo(options);
  const json = options.flags.json !== undefined;
  const reporter = processReporter({ json, maxIters: plan.run.config.max_iters });
  let peers: DemoPeers | null = null;
  const interrupts = listenForInterrupts(() => peers?.kill());
  const events = new EventWatch(reporter);
  const coordinator = await startCoordinator({ ...plan.run, onEvent: (line) => events.take(line) });
  try {
    events.announceLinks(coordinator);
    reporter.note(`starting ${plan.deno} Deno peers and ${plan.tabs} browser tabs`);
    const { joinLink, done } = coordinator;
    const { deno, tabs, engine } = plan;
    peers = createDemoPeers({
      joinLink,
      deno,
      tabs,
      engine,
      onLoss: (text, left) => events.lost(text, left),
    });
    const run = Promise.all([done, peers.start()]);
    // Whichever loses the race below may still fail while everything is being stopped.
    run.catch(() => {});
    await Promise.race([run, done, events.failure, aborted(interrupts.signal)]);
    if (interrupts.signal.aborted) {
      reporter.note("stopping everything that was started; press Ctrl-C again to end at once");
    } else if (plan.keep) await keepServing(interrupts, reporter);
    return events.failed ? 1 : 0;
  } finally {
    await coordinator.stop(interrupts.signal.aborted ? "stopped by its operator" : "the demo is over");
    await peers?.stop();
    interrupts.close();
  }
}

async function keepServing(interrupts: Interrupts, reporter: Reporter): Promise<void> {
  reporter.note("the run is over; the pages stay up until Ctrl-C");
  await aborted(interrupts.signal);
}

/** Passes events on and remembers how the run stands. */
export class EventWatch {
  readonly #reporter: Reporter;
  readonly #failure = Promise.withResolvers<never>();
  #announced = false;
  #begun = false;
  #finished = false;
  failed = false;

  constructor(reporter: Reporter) {
    this.#reporter = reporter;
    this.#failure.promise.catch(() => {});
  }

  /** Rejects if too many peers are lost: the run would wait for them for ever. */
  get failure(): Promise<never> {
    return this.#failure.promise;
  }

  take(line: CoordinatorEventLine): void {
    if (line.event === "listening") this.#announced = true;
    if (line.event === "step") this.#begun = true;
    if (line.event === "state") {
      this.failed = line.state === "failed";
      // Its peers now leave by themselves, while the last checkpoint and the sample are still being written.
      this.#finished ||= line.state === "finished";
    }
    this.#reporter.event(line);
  }

  /** Once the run has begun, it goes on without the peer, as long as there is another. */
  lost(text: string, left: number): void {
    if (this.#finished) return;
    this.#reporter.note(text);
    if (!this.#begun) this.#fail("a peer ended before the first step");
    else if (left === 0) this.#fail("all peers that were started here have ended");
  }

  #fail(text: string): void {
    this.#failure.reject(new ShoalError("internal", `${text}; the lines above say why`));
  }

  /** In case that the coordinator did not say where it listens. */
  announceLinks({ joinLink, adminLink }: { joinLink: string; adminLink: string }): void {
    if (!this.#announced) this.take({ event: "listening", join: joinLink, admin: adminLink });
  }
}
