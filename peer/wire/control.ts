// Control messages between a peer and the coordinator: msgpack maps over the WebSocket, named strings, never positions.
// Decoding is bounded and validated; a bad message is a coded refusal. The grammar is listed in docs/protocol.md.
import { decode, encode } from "@msgpack/msgpack";
import * as v from "valibot";
import { refuse, type Result } from "./errors.ts";
import type { ModelSpec, RunConfig, View } from "./run.ts";
import { shapeProblem } from "./shape.ts";
import { count, COUNT_MAX, id, measure, small, text } from "./values.ts";
import { LinkFigures, LinkFiguresList, OpMs, StageTimesList, Trace } from "./measures.ts";
import { Exported, Kept, Offer, RestoreFailed, type SnapshotOrder, Unkept } from "./snapshots.ts";
import type { LossPoint, RunState } from "./status.ts";
import { WriteFailed, WriteOpen, type WriteOrder, Wrote } from "./texts.ts";

/** Raised whenever a message or frame changes meaning; both sides must agree exactly. */
export const PROTOCOL_VERSION = 4;
/** Without it one message could make the receiver hold arbitrary memory. */
export const CONTROL_BYTES_MAX = 1 << 20;
/** Longest SDP or candidate text that is carried; a real one is below 10 kB. */
const SIGNAL_CHARS_MAX = 64 * 1024;
const pass = v.picklist(["train", "eval"]);

/** Which state a returning peer holds: per stage the committed steps in it and its hash, under the cut of `cut`. */
const HaveSchema = v.object({
  cut: count,
  stages: v.pipe(
    v.array(v.object({ stage: small, step: count, hash: id, logged: v.optional(v.boolean()) })),
    v.maxLength(COUNT_MAX),
  ),
});
export type Have = v.InferOutput<typeof HaveSchema>;
const Resume = v.object({ peer: id, ticket: v.pipe(v.string(), v.maxLength(128)), epoch: id });

const Hello = v.object({
  type: v.literal("hello"),
  version: count,
  token: v.pipe(v.string(), v.maxLength(128)),
  runtime: v.picklist(["tab", "deno"]),
  adapter: text,
  engine: text,
  name: v.optional(text),
  /** It has lost its coordinator in mid-run and asks to go on as who it was. */
  resume: v.optional(Resume),
  have: v.optional(HaveSchema),
  /** Random, kept by the peer's computer for this coordinator alone: by it a computer that was put out is known again. */
  mark: v.optional(v.pipe(v.string(), v.regex(/^[A-Za-z0-9_-]{16,64}$/))),
});
const Measured = v.object({
  type: v.literal("measured"),
  blockMs: measure,
  memoryBytes: measure,
  gpuOptimizer: v.optional(v.boolean()),
  /** Which kernels its engine chose by measuring, for people. */
  kernels: v.optional(text),
  /** How `blockMs` divides among the operations. */
  opMs: v.optional(OpMs),
  /** What of `blockMs` does not grow with the sequences of a micro-batch, and how many it was measured with. */
  fixedMs: v.optional(measure),
  sequences: v.optional(count),
  /** It measures a link when it is asked to. */
  probes: v.optional(v.boolean()),
  /** It writes texts with others when it is asked to. */
  writes: v.optional(v.boolean()),
});
/** Answer to `probe`: the link as this end measured it; without `link` it did not come about in time. */
const Probed = v.object({ type: v.literal("probed"), peer: id, link: v.optional(LinkFigures) });
const Heartbeat = v.object({
  type: v.literal("heartbeat"),
  stepMs: measure,
  bytesUp: measure,
  bytesDown: measure,
  direct: small,
  relayed: small,
  hidden: v.boolean(),
  recomputed: measure,
  recoveryBytes: measure,
  retainedBytes: measure,
  fenced: v.optional(measure),
  snapshotBytes: v.optional(measure),
  snapshotSpared: v.optional(measure),
  /** Of each stage it computes. */
  ops: v.optional(StageTimesList),
  /** Once a second. */
  links: v.optional(LinkFiguresList),
});
const Signal = v.object({
  type: v.literal("signal"),
  peer: id,
  data: v.pipe(v.string(), v.maxLength(SIGNAL_CHARS_MAX)),
});
const Ready = v.object({ type: v.literal("ready"), gen: count });
const Logged = v.object({
  type: v.literal("logged"),
  cut: count,
  gen: count,
  step: count,
  stage: small,
  hash: id,
  gradNormSq: measure,
  saturated: measure,
  nonFinite: measure,
});
const Losses = v.object({
  type: v.literal("losses"),
  cut: count,
  step: count,
  stage: small,
  microBatches: v.pipe(v.array(small), v.maxLength(COUNT_MAX)),
  losses: v.pipe(v.array(v.pipe(v.number(), v.finite())), v.maxLength(COUNT_MAX)),
});
const Evaluated = v.object({
  type: v.literal("evaluated"),
  gen: count,
  step: count,
  stage: small,
  lossSum: v.pipe(v.number(), v.finite()),
  lossCount: small,
});
const Applied = v.object({
  type: v.literal("applied"),
  cut: count,
  gen: count,
  step: count,
  stage: small,
  hash: id,
});
const Warm = v.object({ type: v.literal("warm"), cut: count, gen: count, stage: small });
const WantTotal = v.object({ type: v.literal("want-total"), cut: count, step: count, stage: small });
const NoTotal = v.object({ type: v.literal("no-total"), cut: count, step: count, stage: small, to: id });
const WantState = v.object({ type: v.literal("want-state"), cut: count, stage: small, reason: text });
const LinkLost = v.object({ type: v.literal("link-lost"), gen: count, peer: id, reason: text });
const Leave = v.object({ type: v.literal("leave"), reason: text });
const Pause = v.object({ type: v.literal("pause"), paused: v.boolean() });
const Goodbye = v.object({ type: v.literal("goodbye"), reason: text });

const PeerMessageSchema = v.variant("type", [
  Hello,
  Measured,
  Heartbeat,
  Probed,
  Signal,
  Ready,
  Logged,
  Losses,
  Evaluated,
  Applied,
  Warm,
  WantTotal,
  NoTotal,
  WantState,
  Kept,
  Unkept,
  Exported,
  RestoreFailed,
  Offer,
  LinkLost,
  Trace,
  WriteOpen,
  WriteFailed,
  Wrote,
  Leave,
  Pause,
  Goodbye,
]);
/** What a peer says. `pass` "eval" rounds run forward only; `step` counts committed steps before the round. */
export type PeerMessage = v.InferOutput<typeof PeerMessageSchema>;
export type Pass = v.InferOutput<typeof pass>;
export const PEER_MESSAGE_TYPES = PeerMessageSchema.options.map((option) => option.entries.type.literal);

/** One stage's state as the coordinator holds it, named so that any later split can be assembled from it. */
export interface StateFile {
  stage: number;
  firstLayer: number;
  endLayer: number;
  embed: boolean;
  head: boolean;
  bytes: number;
  hash: string;
  /** Before the first step of a run that begins with a model: the hash of its weights (wire/base.ts); the moments are zero. */
  base?: string;
}

/** Where a view's state comes from: the seed, or the files of one snapshot. */
export interface StateSource {
  step: number;
  files: StateFile[];
}

export interface AnnouncedCorpus {
  tokens: number;
  bytesPerToken: 1 | 2 | 4;
  /** SHA-256 of the tokens' bytes, hex. */
  hash: string;
  /** How it is fetched in parts: bytes of a page, and the SHA-256 of the pages' own; absent: it is fetched whole. */
  pages?: { bytes: number; hash: string };
}

export interface Welcome {
  type: "welcome";
  peer: string;
  incarnation: number;
  config: RunConfig;
  spec: ModelSpec;
  corpus: AnnouncedCorpus;
  /** Proves over HTTP that a request comes from this very peer. */
  ticket: string;
  heartbeatMs: number;
  /** Changes when the run was set back: a smaller `committed` is then no mistake. */
  epoch: string;
  /** Committed steps of the run. */
  committed: number;
  /** The peer is who it was before its coordinator restarted, and goes on with what it holds. */
  resumed: boolean;
}

export interface GroupStatus {
  type: "status";
  state: RunState;
  reason: string;
  step: number;
  groupStepMs: number;
  /** Only the newest points; the page keeps what it has seen. */
  losses: LossPoint[];
  sample: { step: number; text: string } | null;
}

/** What the coordinator says. It is trusted by the peers that chose to join it; its bytes are still bounded. */
export type CoordinatorMessage =
  | Welcome
  | { type: "refused"; code: string; reason: string }
  /** `epoch` is added by whoever keeps the run's log; the core knows nothing of it. */
  | { type: "view"; view: View; source: StateSource | null; epoch?: string }
  /** `trace`: say what you did and when, once your operations of this step are done. */
  | {
    type: "open";
    gen: number;
    step: number;
    pass: Pass;
    trace?: boolean;
    /** With the schedule 2bw: the step before it is open, too. */
    ahead?: boolean;
    /** Training with `dtype` f16: exponent of the loss scale of each stage, by index. */
    lossScale?: number[];
  }
  /**
   * `hashes` of every stage's total: what is applied has this hash, or is fetched from a holder that logged it. `skip`: a gradient
   * overflowed, so everybody passes over the step.
   */
  | { type: "commit"; cut: number; step: number; gradNormSq: number; hashes: string[]; skip?: boolean }
  | { type: "snapshot"; cut: number; step: number; stage: number }
  /** The stage's total of the open step has this hash; it will be sent by another holder. */
  | { type: "adopt"; cut: number; step: number; stage: number; hash: string }
  /** Send your total of this step to that holder. */
  | { type: "send-total"; cut: number; step: number; stage: number; to: string }
  /** A learner's state: fetch this file, then the totals of the steps since. */
  | { type: "state"; cut: number; step: number; stage: number; file: StateFile }
  | SnapshotOrder
  /** Link up with that peer, which is told the same, send a few frames behind everything else, and tell how quickly they went. */
  | { type: "probe"; peer: string }
  /** About a text that the stages write together. */
  | { type: "write"; order: WriteOrder }
  | { type: "signal"; peer: string; data: string }
  | GroupStatus
  /** `mayReturn`: it was only silent or slow (a closed lid, a busy machine) and is welcome as a new peer. */
  | { type: "kicked"; reason: string; mayReturn: boolean }
  | { type: "done"; reason: string };

export const COORDINATOR_MESSAGE_TYPES = [
  "welcome",
  "refused",
  "view",
  "open",
  "commit",
  "snapshot",
  "adopt",
  "send-total",
  "state",
  "keep",
  "snapshot-out",
  "restore",
  "probe",
  "write",
  "signal",
  "status",
  "kicked",
  "done",
] as const satisfies readonly CoordinatorMessage["type"][];

const DECODE_LIMITS = {
  maxStrLength: SIGNAL_CHARS_MAX * 4,
  maxBinLength: 0,
  maxExtLength: 0,
  maxArrayLength: 65_536,
  maxMapLength: 4_096,
};

export function encodeControl(message: PeerMessage | CoordinatorMessage): Uint8Array {
  return encode(message, { ignoreUndefined: true });
}

function decodeMap(bytes: Uint8Array): Result<Record<string, unknown>> {
  if (bytes.length > CONTROL_BYTES_MAX) {
    return refuse("bad-message", `control message of ${bytes.length} bytes`);
  }
  const problem = shapeProblem(bytes);
  if (problem !== null) return refuse("bad-message", `control message: ${problem}`);
  try {
    const value = decode(bytes, DECODE_LIMITS);
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      return refuse("bad-message", "control message is not a map");
    }
    return { ok: true, value: value as Record<string, unknown> };
  } catch (error) {
    return refuse("bad-message", `control message is not msgpack: ${String(error).slice(0, 120)}`);
  }
}

/** Bytes from a peer; never throws. */
export function decodePeerMessage(bytes: Uint8Array): Result<PeerMessage> {
  const map = decodeMap(bytes);
  if (!map.ok) return map;
  const parsed = v.safeParse(PeerMessageSchema, map.value);
  if (parsed.success) return { ok: true, value: parsed.output };
  const issue = parsed.issues[0];
  return refuse("bad-message", `${shown(map.value["type"])}: ${issue.message.slice(0, 160)}`);
}

/** A stranger's map may define toString itself, so only text is ever shown. */
function shown(value: unknown): string {
  return typeof value === "string" ? value.slice(0, 32) : typeof value;
}

/** Bytes from the coordinator: type and size are checked; the content comes from the party the owner chose to join. */
export function decodeCoordinatorMessage(bytes: Uint8Array): Result<CoordinatorMessage> {
  const map = decodeMap(bytes);
  if (!map.ok) return map;
  const type = map.value["type"];
  if (!COORDINATOR_MESSAGE_TYPES.some((known) => known === type)) {
    return refuse("bad-message", `unknown coordinator message ${shown(type)}`);
  }
  return { ok: true, value: map.value as unknown as CoordinatorMessage };
}

/** WebSocket messages start with one byte that says what follows. */
export const TAG_CONTROL = 0;
/** Followed by one byte of id length, the id of the other peer, then the link's bytes. */
export const TAG_RELAY = 1;

export function tagControl(message: PeerMessage | CoordinatorMessage): Uint8Array {
  const body = encodeControl(message);
  const out = new Uint8Array(body.length + 1);
  out[0] = TAG_CONTROL;
  out.set(body, 1);
  return out;
}

export function tagRelay(peer: string, bytes: Uint8Array): Uint8Array {
  const name = new TextEncoder().encode(peer);
  const out = new Uint8Array(2 + name.length + bytes.length);
  out[0] = TAG_RELAY;
  out[1] = name.length;
  out.set(name, 2);
  out.set(bytes, 2 + name.length);
  return out;
}

export type Tagged = { kind: "control"; bytes: Uint8Array } | {
  kind: "relay";
  peer: string;
  bytes: Uint8Array;
};

export function readTagged(bytes: Uint8Array): Result<Tagged> {
  if (bytes[0] === TAG_CONTROL) return { ok: true, value: { kind: "control", bytes: bytes.subarray(1) } };
  const length = bytes[1] ?? 0;
  if (bytes[0] !== TAG_RELAY || length === 0 || bytes.length < 2 + length) {
    return refuse("bad-message", `socket message with tag ${bytes[0] ?? "none"}`);
  }
  const peer = new TextDecoder().decode(bytes.subarray(2, 2 + length));
  return { ok: true, value: { kind: "relay", peer, bytes: bytes.subarray(2 + length) } };
}
