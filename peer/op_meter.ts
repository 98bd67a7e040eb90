// How long a peer's operations take and how long it waits for frames: moving averages per stage, and the trace of one step.
// No clock: times are arguments, in milliseconds of any one clock. What must stay true: everything kept is bounded, and a
// figure belongs to one cut of the layers.
import type { Job } from "./core/peer_state.ts";
import type { BoundarySums } from "./engine/boundary_times.ts";
import type { FrameHeader } from "./wire/frame.ts";
import { MEASURES_MAX, type StageTimes, type Trace, TRACE_OPS_MAX, type TracedOp } from "./wire/measures.ts";

/** Weight of the newest micro-batch in a moving average: about the last ten count. */
export const AVERAGE_WEIGHT = 0.1;
/** First micro-batches of a stage that tell of compiling kernels and growing pools, not of computing. */
export const SKIPPED = 1;
/** Microseconds that fit into a count; a step that lasts longer has its times cut there. */
const MICROSECONDS_MAX = 0xffffffff;

type OpJob = Job & { job: "op" };
type OpKind = OpJob["kind"];
/** What is looked at of a frame that was sent. */
type Sent = Pick<FrameHeader, "kind" | "fromStage" | "pass" | "cut">;

interface Average {
  ms: number;
  /** Values that it was made of. */
  n: number;
}

interface Averages {
  cut: number;
  stage: number;
  ms: Record<OpKind, number>;
  count: Record<OpKind, number>;
  waitMs: number;
  /** Of one boundary tensor of F and of B. */
  decode: Record<"F" | "B", Average>;
  encode: Record<"F" | "B", Average>;
  send: Record<"F" | "B", Average>;
  /** What the engines had spent on boundary tensors after the newest operation. */
  sums: BoundarySums | null;
  /** Waited since the stage's last W, that is, for one micro-batch. */
  waited: number;
}

/** When a job ran. */
export interface JobSpan {
  /** From then on nothing was missing; until it begins the peer may rest. */
  due: number;
  begun: number;
  ended: number;
  /** A peer that lends a part of its time takes so many times as long in the mean: its rests belong to its operations. */
  stretch: number;
  /** What the stage's engines have spent on boundary tensors by now; absent where nobody can tell. */
  boundary?: BoundarySums | null;
}

/** The training round that was opened last. */
interface Round {
  gen: number;
  step: number;
  /** Newest step that counts. */
  last: number;
  traced: boolean;
  at: number;
  ops: TracedOp[];
  dropped: number;
  /** Operations that were in the trace when it was told last. */
  told: number;
}

export class OpMeter {
  #averages = new Map<number, Averages>();
  #round: Round | null = null;
  /** When the last job ended: until the next begins there was nothing to do. */
  #idleSince = 0;

  /** A training round was opened. */
  opened({ gen, step, traced }: { gen: number; step: number; traced: boolean }, at: number): void {
    this.#round = { gen, step, last: step, traced, at, ops: [], dropped: 0, told: 0 };
  }

  /** A step was opened beside the one before it (schedule 2bw): it counts for the averages alone. */
  openedAhead(step: number): void {
    if (this.#round !== null) this.#round.last = step;
  }

  ran(job: Job, { due, begun, ended, stretch, boundary = null }: JobSpan): void {
    const round = this.#round;
    const since = Math.max(this.#idleSince, round?.at ?? 0);
    this.#idleSince = ended;
    if (job.job !== "op" || job.pass !== "train" || round === null) return;
    if (job.step < round.step || job.step > round.last) return;
    const wait = Math.max(0, due - since);
    this.#average(job, (ended - begun) * stretch, wait);
    this.#averageBoundary(job, boundary, stretch);
    if (round.traced && job.step === round.step) record(round, job, { begun, ended, wait });
  }

  /** A boundary tensor of a stage was made a frame and handed to its link. */
  sent({ kind, fromStage, pass, cut }: Sent, ms: number): void {
    const it = this.#averages.get(fromStage);
    if (pass !== "train" || it?.cut !== cut || (kind !== "activation" && kind !== "gradient")) return;
    grow(it.send[kind === "activation" ? "F" : "B"], ms);
  }

  /** Of the stages of this cut, by number; of no more than a message may hold. */
  times(cut: number): StageTimes[] {
    const of = [...this.#averages.values()].filter((it) => it.cut === cut).sort((a, b) => a.stage - b.stage);
    return of.slice(0, MEASURES_MAX).map(({ stage, ms, count, waitMs, decode, encode, send }) => ({
      ...{ cut, stage, microBatches: Math.max(0, count.W - SKIPPED) },
      ...{ forwardMs: ms.F, backwardMs: ms.B, weightGradMs: ms.W, waitMs },
      ...bothWays("decodeMs", decode),
      ...bothWays("encodeMs", encode),
      ...bothWays("sendMs", send),
    }));
  }

  /** The step whose trace is wanted and not told yet, or null. */
  get tracedStep(): number | null {
    const round = this.#round;
    return round?.traced === true && round.ops.length > round.told ? round.step : null;
  }

  /** The operations of the step so far; from here on only more of them make it due again. */
  trace(now: number): Trace | null {
    const round = this.#round;
    if (round === null) return null;
    const { gen, step, at, ops, dropped } = round;
    round.told = ops.length;
    return { type: "trace", gen, step, saidUs: microseconds(now - at), dropped, ops: [...ops] };
  }

  #average(job: OpJob, ms: number, wait: number): void {
    const it = this.#of(job);
    const n = ++it.count[job.kind] - SKIPPED;
    if (n > 0) it.ms[job.kind] = moved(it.ms[job.kind], ms, n);
    it.waited += wait;
    if (job.kind !== "W") return;
    if (n > 0) it.waitMs = moved(it.waitMs, it.waited, n);
    it.waited = 0;
  }

  /** Sums grow; the first operation only tells where they are. */
  #averageBoundary(job: OpJob, sums: BoundarySums | null, stretch: number): void {
    const it = this.#of(job);
    const before = it.sums;
    it.sums = sums;
    if (sums === null || before === null || job.kind === "W") return;
    for (const what of ["decode", "encode"] as const) {
      const tensors = sums[`${what}s`] - before[`${what}s`];
      const ms = sums[`${what}Ms`] - before[`${what}Ms`];
      // Other engines than before begin at nothing.
      if (tensors > 0 && ms >= 0) grow(it[what][job.kind], ms / tensors * stretch);
    }
  }

  #of({ cut, stage }: OpJob): Averages {
    for (const [key, it] of this.#averages) if (it.cut !== cut) this.#averages.delete(key);
    const known = this.#averages.get(stage);
    if (known !== undefined) return known;
    const none = () => ({ F: 0, B: 0, W: 0 });
    const ways = () => ({ F: { ms: 0, n: 0 }, B: { ms: 0, n: 0 } });
    const made: Averages = {
      ...{ cut, stage, ms: none(), count: none(), waitMs: 0, waited: 0 },
      ...{ decode: ways(), encode: ways(), send: ways(), sums: null },
    };
    this.#averages.set(stage, made);
    return made;
  }
}

/** The n-th value into an average: of all while they are few, then with a fixed weight for the newest. */
function moved(average: number, value: number, n: number): number {
  return average + Math.max(AVERAGE_WEIGHT, 1 / n) * (value - average);
}

function grow(average: Average, value: number): void {
  average.ms = moved(average.ms, value, ++average.n);
}

/** Of one micro-batch: its activation and its gradient. Nothing if neither was ever measured. */
function bothWays<Name extends string>(
  name: Name,
  { F, B }: Record<"F" | "B", Average>,
): { [name in Name]?: number } {
  return F.n + B.n === 0 ? {} : { [name]: F.ms + B.ms } as { [name in Name]?: number };
}

function record(round: Round, job: OpJob, at: { begun: number; ended: number; wait: number }): void {
  const { kind, stage, microBatch } = job;
  round.ops.push({
    ...{ kind, stage, microBatch, waitUs: microseconds(at.wait) },
    ...{ startUs: microseconds(at.begun - round.at), endUs: microseconds(at.ended - round.at) },
  });
  if (round.ops.length <= TRACE_OPS_MAX) return;
  round.ops.shift();
  round.told = Math.max(0, round.told - 1);
  round.dropped++;
}

function microseconds(ms: number): number {
  return Math.min(MICROSECONDS_MAX, Math.max(0, Math.round(ms * 1000)));
}
