// The integer sums of one stage instance: own sum, parts and shards of others, the step's total, the tied embedding, and the
// log of committed totals. Pure arithmetic on what is held; the core has checked that the parts cover every micro-batch once.
// What must stay true: a fetched total replaces what is here only if it has the hash that was asked for.
import { packInts } from "./codec/ints.ts";
import type { FrameOut, Job, JobResult } from "./core/peer_state.ts";
import { addInto } from "./exact/accumulate.ts";
import type { GradientFacts } from "./engine/engine.ts";
import { basisOf } from "./exact/delay.ts";
import { hashWords, totalHash } from "./exact/hash.ts";
import { totalNormSq } from "./exact/optimizer.ts";
import { tensorSlice } from "./exact/state.ts";
import { frameKey, type Held } from "./held.ts";
import { EMBEDDING_NAME } from "./model/layout.ts";
import { assert } from "./wire/errors.ts";
import type { FrameHeader } from "./wire/frame.ts";
import type { RunConfig } from "./wire/run.ts";
import { isTiedModel } from "./wire/view.ts";

type SumJob<T extends Job["job"]> = Job & { job: T };

/** Codec, size and payload of a frame that carries a sum. */
export function sumPayload(
  held: Held,
  out: FrameOut,
  config: RunConfig,
): Pick<FrameHeader, "codec" | "cols" | "exponent"> & { payload: Uint8Array } {
  const logged = out.kind === "total" ? held.log.get(out.step) : undefined;
  // Of a committed step the commit has said whether it is passed over.
  if (logged !== undefined) {
    return { codec: "packed", cols: logged.values, exponent: 0, payload: logged.packed };
  }
  const values = sumOf(held, out);
  const base = { cols: values.length, exponent: overflows(held, config) ? 1 : 0 };
  if (config.reduce === "int8") return { codec: "packed", ...base, payload: packInts(values) };
  return { codec: "int32", ...base, payload: new Uint8Array(values.slice().buffer) };
}

/** Whether a value of the step's sum, as far as it is known here, was not finite: with `dtype` f16 a reason to pass over the step. */
function overflows({ nonFinite, overflow }: Held, { dtype }: Pick<RunConfig, "dtype">): boolean {
  return dtype === "f16" && (nonFinite > 0 || overflow);
}

function sumOf(held: Held, out: FrameOut): Int32Array {
  if (out.kind === "part") return out.range === null ? held.sum : held.sum.subarray(...out.range);
  if (out.kind === "shard") return held.total.subarray(...out.range!);
  if (out.kind === "tied") return held.tied ?? held.total.subarray(...tiedRange(held));
  return withTied(held);
}

/** The total as it is sent and logged: the own share of a tied embedding goes with it, for whoever has to send it on. */
function withTied({ total, tied }: Held): Int32Array {
  if (tied === null) return total;
  const whole = new Int32Array(total.length + tied.length);
  whole.set(total);
  whole.set(tied, total.length);
  return whole;
}

/** The own sum and the parts of others, over a range of the gradient. */
export function addParts(
  held: Held,
  { step, parts, range }: Pick<SumJob<"reduce">, "step" | "parts" | "range">,
): void {
  const total = held.total.subarray(...range);
  total.set(held.sum.subarray(...range));
  for (const { from, gen } of parts) {
    const part = inboxSum(held, { step, kind: "part", gen, which: from });
    addInto(total, part);
  }
}

export function makeTotal(held: Held, job: SumJob<"sum">, config: RunConfig): void {
  if (job.shards === null) addParts(held, { ...job, range: [0, held.total.length] });
  for (const { from, gen, range } of job.shards ?? []) {
    held.total.subarray(...range).set(inboxSum(held, { step: job.step, kind: "shard", gen, which: from }));
  }
  held.tied = isTiedEnd(held, config) ? held.total.slice(...tiedRange(held)) : null;
}

/** Adds the other end of a tied embedding, and says what is told of the complete total. */
export function seal(held: Held, job: SumJob<"seal">, config: RunConfig): JobResult {
  if (job.tied !== null) {
    const { from: which, gen } = job.tied;
    addInto(
      held.total.subarray(...tiedRange(held)),
      inboxSum(held, { step: job.step, kind: "tied", gen, which }),
    );
  }
  return facts(held, job, config);
}

/** Makes a fetched total the step's, if it is the one that was asked for. */
export function install(held: Held, job: SumJob<"install">, config: RunConfig): JobResult {
  const base = { pass: "train" as const, step: job.step, kind: "total" as const, gen: 0 };
  const { value, overflow = false } = held.inbox.get(frameKey({ ...base, which: job.from })) ?? {};
  const size = held.total.length;
  if (!(value instanceof Int32Array) || value.length < size) return { hash: "" };
  const hash = totalHash(value.subarray(0, size));
  if (hash !== job.hash) return { hash };
  held.total.set(value.subarray(0, size));
  held.overflow ||= overflow;
  held.tied = isTiedEnd(held, config) ? value.slice(size) : null;
  return facts(held, job, config);
}

function facts(held: Held, { countTied }: { countTied: boolean }, config: RunConfig): JobResult {
  const { gradient_accumulation_steps: microBatches, reduce } = config;
  const skip = new Set(isTiedEnd(held, config) && !countTied ? [EMBEDDING_NAME] : []);
  const basis = basisOf(held.state, held.state.step);
  const gradNormSq = totalNormSq(basis, held.total, { microBatches, reduce, skip });
  const nonFinite = Math.max(held.nonFinite, overflows(held, config) ? 1 : 0);
  return { hash: totalHash(held.total), gradNormSq, saturated: held.saturated, nonFinite };
}

/**
 * What stands for the total's hash where the sum is on a GPU: it names the step and the facts that follow from the sum, and is
 * no fingerprint of it. There is one holder, so nobody compares.
 */
export function factsHash(step: number, facts: GradientFacts): string {
  const norm = new Uint32Array(Float64Array.of(facts.gradNormSq).buffer);
  return `gpu-${hashWords(Uint32Array.of(step, ...norm, facts.saturated, facts.nonFinite))}`;
}

function inboxSum(
  held: Held,
  frame: { step: number; kind: "part" | "shard" | "tied"; gen: number; which: string },
): Int32Array {
  const { value, overflow = false } = held.inbox.get(frameKey({ ...frame, pass: "train" })) ?? {};
  held.overflow ||= overflow;
  assert(value instanceof Int32Array, `the ${frame.kind} of ${frame.which} is not here`);
  return value;
}

/** An applied total goes into the log, packed; those older than the newest `keep` go. */
export function logTotal(held: Held, { step, keep }: { step: number; keep: number }): void {
  for (const old of held.log.keys()) if (old <= step - keep) held.log.delete(old);
  const whole = withTied(held);
  held.log.set(step, { packed: packInts(whole), values: whole.length });
  held.tied = null;
}

export function logBytes({ log }: Held): number {
  return [...log.values()].reduce((sum, { packed }) => sum + packed.length, 0);
}

function isTiedEnd({ plan }: Held, config: RunConfig): boolean {
  return isTiedModel(config) && plan.embed !== plan.head;
}

function tiedRange(held: Held): [number, number] {
  const { start, end } = tensorSlice(held.state.layout, EMBEDDING_NAME);
  return [start, end];
}

/** Values that both ends of a tied embedding share. */
export function tiedSize(held: Held): number {
  const [start, end] = tiedRange(held);
  return end - start;
}
