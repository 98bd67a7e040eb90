// One stage instance on a peer: its exact state, its engine, the payloads of open rounds, and the names under which they are
// found. Not behaviour: holder.ts does what the core's jobs say, held_sums.ts is about integer sums.
import { unpackInts } from "./codec/ints.ts";
import type { StageEngine, StageOptimizer } from "./engine/engine.ts";
import { stateHash } from "./exact/hash.ts";
import type { StageState } from "./exact/state.ts";
import type { Pass } from "./wire/control.ts";
import { assert, type Result, ShoalError } from "./wire/errors.ts";
import { type FrameHeader, isSumCodec } from "./wire/frame.ts";
import type { Encoded, StagePlan } from "./wire/run.ts";
import { UNREAD_STATE } from "./wire/values.ts";
import { roundOrder } from "./wire/view.ts";

/** A committed step's total, packed, with this end's own share of a tied embedding behind it. */
export interface LoggedSum {
  packed: Uint8Array;
  values: number;
}

/** Sum of the own micro-batches of a step. */
export interface StepSum {
  step: number;
  sum: Int32Array;
  saturated: number;
  nonFinite: number;
}

export interface Held {
  key: string;
  plan: StagePlan;
  /** Null for a shadow that has not built one; a shadow's may lack the newest parameters. */
  engine: StageEngine | null;
  /** With the schedule 2bw: what odd steps are computed with, `engine` being for the even ones; else null. */
  odd: StageEngine | null;
  /** Of a state that is on the GPU (`optimizer`) only layout and step are here; its arrays are empty. */
  state: StageState;
  /** Null: the exact core makes the steps. Else it has the state, and the arrays of sums below are empty. */
  optimizer: StageOptimizer | null;
  /** A step has begun whose sum on the GPU is still the one before. */
  sumIsStale: boolean;
  /** Sum of the own micro-batches of the open step; kept, because a new view may ask for it again. */
  sum: Int32Array;
  /** With the schedule 2bw: that of the step after the open one; null before the first. */
  ahead: StepSum | null;
  /** Sum of all micro-batches, once it is known. */
  total: Int32Array;
  /** This end's own share of a tied embedding's total. */
  tied: Int32Array | null;
  /** Totals of the newest committed steps, for holders that missed one. */
  log: Map<number, LoggedSum>;
  scratch: Int32Array;
  saturated: number;
  /** Values of the own micro-batches that were not finite, and whether others tell of some in what they sent (`dtype` f16). */
  nonFinite: number;
  overflow: boolean;
  /** Payloads of open rounds by frameKey(). */
  inbox: Map<string, { order: number; value: Encoded | Int32Array; overflow?: boolean }>;
  outbox: Map<string, { order: number; value: Encoded | Int32Array }>;
}

/** Sums and evaluations are of one generation, a boundary tensor of a training step and a fetched total are not. */
export function frameKey(
  frame: { pass: Pass; step: number; kind: FrameHeader["kind"]; gen: number; which: number | string },
): string {
  const { pass, step, kind, gen, which } = frame;
  const ofOneView = kind === "part" || kind === "tied" || kind === "shard" || pass === "eval";
  return `${roundOrder(pass, step)}/${kind}/${ofOneView ? gen : "any"}/${which}`;
}

export function encodedOf(header: FrameHeader, payload: Uint8Array): Encoded {
  const { codec, exponent, rows, cols } = header;
  if (isSumCodec(codec) || codec === "bytes") {
    throw new ShoalError("bad-frame", `a boundary tensor cannot be ${codec}`);
  }
  return { codec, exponent, rows, cols, payload };
}

/** The shape is what the view promises, so `cols` bounds what is unpacked. */
export function intsOf({ codec, cols }: FrameHeader, payload: Uint8Array): Result<Int32Array> {
  if (codec === "packed") return unpackInts(payload, cols);
  return { ok: true, value: new Int32Array(payload.slice().buffer) };
}

/** Of a payload that was checked on arrival. */
export function checkedInts(header: FrameHeader, payload: Uint8Array): Int32Array {
  const values = intsOf(header, payload);
  assert(values.ok, "a sum that was not checked");
  return values.value;
}

/** The state with all of its values, wherever they are. */
export async function wholeState({ state, optimizer }: Held): Promise<StageState> {
  return optimizer === null ? state : { ...state, ...await optimizer.read() };
}

/** The hash that others compare; UNREAD_STATE while the values are on the GPU. */
export function toldHash(state: StageState): string {
  return state.params.length === 0 ? UNREAD_STATE : stateHash(state);
}

/** From here on the exact core makes the steps. The engine has the parameters, and keeps its optimizer unused. */
export async function takeBack(held: Held): Promise<void> {
  if (held.optimizer === null) return;
  const state = await wholeState(held);
  Object.assign(held, { state, optimizer: null, ...emptySums(state.layout.size) });
  await held.engine?.load(state.params);
}

/** Where the weight gradients of a step are added up: of the open one, or of the one after it (2bw). */
export function stepSum(held: Held, step: number): Pick<StepSum, "sum" | "saturated" | "nonFinite"> {
  if (step === held.state.step) return held;
  if (held.ahead?.step === step) return held.ahead;
  const sum = held.ahead?.sum.fill(0) ?? new Int32Array(held.sum.length);
  const ahead: StepSum = { step, sum, saturated: 0, nonFinite: 0 };
  held.ahead = ahead;
  return ahead;
}

/** A training step begins: its sum is empty, unless it was begun while the one before it was open. */
export function beginSum(held: Held, step: number): void {
  const { ahead } = held;
  Object.assign(held, { saturated: 0, nonFinite: 0, overflow: false, tied: null, sumIsStale: true });
  if (ahead?.step !== step) return void held.sum.fill(0);
  const { sum, saturated, nonFinite } = ahead;
  held.ahead = { ...ahead, step: -1, sum: held.sum };
  Object.assign(held, { sum, saturated, nonFinite });
}

export function emptySums(size: number): Pick<Held, "sum" | "total" | "scratch"> {
  return { sum: new Int32Array(size), total: new Int32Array(size), scratch: new Int32Array(size) };
}
