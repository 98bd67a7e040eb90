// What peers measure of themselves and tell the coordinator: operation times, links, and the trace of one step. Parts of the
// control messages; the grammar is in docs/protocol.md, control.ts encodes and decodes. Times are milliseconds unless a
// name says otherwise, rates bytes per second; 0 stands for what is not known yet.
import * as v from "valibot";
import { count, id, measure, small } from "./values.ts";

/** Stages of one peer and links of one peer that a heartbeat tells of; without it one message could hold any number. */
export const MEASURES_MAX = 64;
/** Operations of one step that a peer records; older ones are dropped and counted. */
export const TRACE_OPS_MAX = 4_096;

/** One layer and one micro-batch of the probe at admission, without the model's ends. */
export const OpMs = v.object({ forward: measure, backward: measure, weightGrad: measure });
export type OpMs = v.InferOutput<typeof OpMs>;

/**
 * Moving averages of one stage as the peer holds it, per micro-batch. Each time holds everything between the job's begin and
 * end on the peer: upload, kernels, encoding and readback of what is sent, and for W the rounding to integers.
 */
export const StageTimes = v.object({
  /** Generation with which the cut began that the stage belongs to. */
  cut: count,
  stage: small,
  /** Micro-batches that the averages were made of. */
  microBatches: count,
  forwardMs: measure,
  backwardMs: measure,
  weightGradMs: measure,
  /** The peer had nothing to do until a frame for this stage came. */
  waitMs: measure,
  /** Parts of the times of F and B: judging and decoding what came in; encoding and reading back what goes out. Absent = unknown. */
  decodeMs: v.optional(measure),
  encodeMs: v.optional(measure),
  /** Beside them: checksums, and handing frames to their links. */
  sendMs: v.optional(measure),
});
export type StageTimes = v.InferOutput<typeof StageTimes>;
export const StageTimesList = v.pipe(v.array(StageTimes), v.maxLength(MEASURES_MAX));

/** One link as this end sees it. The rate is that of frames under way, not an average over idle time. */
export const LinkFigures = v.object({
  peer: id,
  /** The shortest round trip of the last few seconds: longer ones waited behind frames. */
  rttMs: measure,
  upBytesPerS: measure,
  path: v.picklist(["direct", "turn", "relay", "loopback"]),
});
export type LinkFigures = v.InferOutput<typeof LinkFigures>;
export const LinkFiguresList = v.pipe(v.array(LinkFigures), v.maxLength(MEASURES_MAX));

/** One operation; times in microseconds since the peer heard the round open. */
export const TracedOp = v.object({
  kind: v.picklist(["F", "B", "W"]),
  stage: small,
  microBatch: small,
  startUs: count,
  endUs: count,
  /** So long before its start the peer had nothing to do. */
  waitUs: count,
});
export type TracedOp = v.InferOutput<typeof TracedOp>;

/** A peer's operations of one step, once all of them are done. Asked for with `open`. */
export const Trace = v.object({
  type: v.literal("trace"),
  gen: count,
  step: count,
  /** When this was said; with the time of its arrival it gives the round trip. */
  saidUs: count,
  /** Operations that found no room, the earliest of the step. */
  dropped: count,
  ops: v.pipe(v.array(TracedOp), v.maxLength(TRACE_OPS_MAX)),
});
export type Trace = v.InferOutput<typeof Trace>;
