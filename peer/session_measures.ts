// What a session measures while it runs: its operations, its links, and when the trace of a step is due. Decides nothing about
// the protocol; the shell feeds it with times.
import type { PeerCore } from "./core/peer_core.ts";
import type { Job } from "./core/peer_state.ts";
import { boundarySums } from "./engine/boundary_times.ts";
import type { Held } from "./held.ts";
import { enginesOf } from "./held_engines.ts";
import { LinkMeter } from "./link_meter.ts";
import type { LinkStats } from "./net/link.ts";
import { type JobSpan, OpMeter } from "./op_meter.ts";
import { finished } from "./schedule/executor.ts";
import type { CoordinatorMessage } from "./wire/control.ts";
import type { FrameHeader } from "./wire/frame.ts";
import type { LinkFigures, StageTimes, Trace } from "./wire/measures.ts";

/** Heartbeats between two that tell of links, which are many and change slowly. */
const LINKS_EVERY = 4;

export class SessionMeasures {
  readonly #ops = new OpMeter();
  readonly #links = new LinkMeter();
  #beats = 0;

  hear(message: CoordinatorMessage, now: number): void {
    if (message.type !== "open" || message.pass !== "train") return;
    const { gen, step, trace, ahead } = message;
    if (ahead === true) this.#ops.openedAhead(step);
    else this.#ops.opened({ gen, step, traced: trace === true }, now);
  }

  ran(job: Job, span: JobSpan, instances: readonly Held[]): void {
    const held = job.job === "op" ? instances.find(({ plan }) => plan.index === job.stage) : undefined;
    const boundary = held === undefined ? null : boundarySums(enginesOf(held));
    this.#ops.ran(job, { ...span, boundary });
  }

  /** A frame was made and handed to its link. */
  sent(frame: Pick<FrameHeader, "kind" | "fromStage" | "pass" | "cut">, ms: number): void {
    this.#ops.sent(frame, ms);
  }

  /** What is to be said of the traced step, once this peer has done all that is its own in it. */
  traceDue(core: PeerCore, now: number): Trace | null {
    const step = this.#ops.tracedStep;
    return step === null || !isDone(core, step) ? null : this.#ops.trace(now);
  }

  observeLinks(links: Readonly<Record<string, LinkStats>>): void {
    this.#links.observe(links);
  }

  /** For the next heartbeat. */
  figures(
    cut: number | undefined,
    links: Readonly<Record<string, LinkStats>>,
  ): { ops?: StageTimes[]; links?: LinkFigures[] } {
    const told = this.#beats++ % LINKS_EVERY === 0;
    return {
      ...(cut === undefined ? {} : { ops: this.#ops.times(cut) }),
      ...(told ? { links: this.#links.figures(links) } : {}),
    };
  }
}

function isDone({ state }: PeerCore, step: number): boolean {
  return state.instances.every(({ microBatches, step: at, work }) => {
    if (microBatches.length === 0 || at === null || at > step) return true;
    return work !== null && work.step === step && work.progress !== null && finished(work.progress);
  });
}
