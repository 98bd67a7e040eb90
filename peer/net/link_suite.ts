// The acceptance suite of Link: every implementation passes every case, in Deno and in a browser (nothing
// here is bound to either). A case gets two open links and throws an Error that says what broke.
import { crc32c } from "../wire/crc32c.ts";
import { ShoalError } from "../wire/errors.ts";
import { LINK_QUEUE_BYTES_MAX } from "./channel_link.ts";
import { CHUNK_BYTES_MAX, CHUNK_PAYLOAD_BYTES_MAX } from "./chunks.ts";
import type { Link, LinkState, Priority } from "./link.ts";

export interface LinkPair {
  a: Link;
  b: Link;
  /** Puts bytes on the wire from a to b, past a's queue. */
  inject(bytes: Uint8Array<ArrayBuffer>): void;
  dispose(): Promise<void>;
}

export interface LinkCase {
  name: string;
  run(pair: LinkPair): Promise<void>;
}

/** A case that waits longer than this has failed: the slowest path moves 5 MiB in a few seconds. */
const CASE_TIMEOUT_MS = 30_000;
const MIB = 1024 * 1024;
/** Around every boundary of the chunking, and far beyond it. */
const SIZES = [
  0,
  1,
  CHUNK_PAYLOAD_BYTES_MAX - 1,
  CHUNK_PAYLOAD_BYTES_MAX,
  CHUNK_PAYLOAD_BYTES_MAX + 1,
  CHUNK_BYTES_MAX - 1,
  CHUNK_BYTES_MAX,
  CHUNK_BYTES_MAX + 1,
  MIB,
  5 * MIB,
];

export const LINK_CASES: readonly LinkCase[] = [
  { name: "carries frames of every size, both ways, intact", run: everySize },
  { name: "keeps the order within each priority", run: orderWithinPriority },
  { name: "lets an urgent frame overtake a bulk frame under way", run: urgentFirst },
  { name: "bounds its queue and says link-overflow", run: boundedQueue },
  { name: "reports a close with its reason on both ends", run: closeBothEnds },
  { name: "refuses to send after a close", run: sendAfterClose },
  { name: "delivers no part of a frame that a close cuts off", run: closeMidFrame },
  { name: "closes with bad-frame on garbage and throws nothing", run: garbage },
  { name: "counts frames and bytes and measures the round trip", run: counters },
];

/** Runs one case on a fresh pair. */
export async function runLinkCase(linkCase: LinkCase, makePair: () => Promise<LinkPair>): Promise<void> {
  const pair = await makePair();
  try {
    await within(linkCase.run(pair), linkCase.name);
  } finally {
    await pair.dispose();
  }
}

/** Bytes that differ at every position and from frame to frame. */
export function patternFrame(size: number, salt: number): Uint8Array {
  const frame = new Uint8Array(size);
  let x = (salt * 2654435761 + 12345) >>> 0;
  for (let i = 0; i < size; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    frame[i] = x >>> 24;
  }
  return frame;
}

/** Resolves once `link` is open; rejects with the reason if it closes instead. */
export function untilOpen(link: Link): Promise<void> {
  if (link.state === "open") return Promise.resolve();
  return new Promise((resolve, reject) => {
    link.onstate = (state, reason) => {
      if (state === "open") resolve();
      else if (state === "closed") reject(new Error(`link closed: ${reason}`));
    };
  });
}

async function everySize({ a, b }: LinkPair): Promise<void> {
  for (const [from, to] of [[a, b], [b, a]] as const) {
    const sent = SIZES.map((size, i) => patternFrame(size, i));
    const arrived = frames(to, sent.length);
    for (const frame of sent) from.send(frame, 1);
    const got = await arrived;
    for (const [i, frame] of sent.entries()) {
      check(got[i]!.length === frame.length, `frame ${i} has ${got[i]!.length} bytes, sent ${frame.length}`);
      check(crc32c(got[i]!) === crc32c(frame), `frame of ${frame.length} bytes arrived damaged`);
    }
  }
}

async function orderWithinPriority({ a, b }: LinkPair): Promise<void> {
  const count = 60;
  const arrived = frames(b, count);
  for (let i = 0; i < count; i++) {
    const frame = patternFrame(i % 7 === 0 ? 200_000 : 100, i);
    frame[0] = i % 3;
    frame[1] = i;
    a.send(frame, (i % 3) as Priority);
  }
  const got = await arrived;
  for (let priority = 0; priority < 3; priority++) {
    const order = got.filter((frame) => frame[0] === priority).map((frame) => frame[1]!);
    check(order.length === count / 3, `${order.length} frames of priority ${priority} arrived`);
    check(order.every((n, i) => i === 0 || n > order[i - 1]!), `priority ${priority} came as ${order}`);
  }
}

async function urgentFirst({ a, b }: LinkPair): Promise<void> {
  const arrived = frames(b, 3);
  a.send(new Uint8Array(5 * MIB).fill(2), 2);
  a.send(new Uint8Array(1000).fill(1), 1);
  a.send(new Uint8Array(1000).fill(0), 0);
  const order = (await arrived).map((frame) => frame[0]);
  check(order.join() === "0,1,2", `priorities arrived as ${order}, expected 0,1,2`);
}

function boundedQueue({ a }: LinkPair): Promise<void> {
  const frame = new Uint8Array(16 * MIB);
  let code = "nothing";
  // One frame more than the queue could ever hold at once, even with what already left for the channel.
  for (let i = 0; i < LINK_QUEUE_BYTES_MAX / frame.length + 2 && code === "nothing"; i++) {
    code = codeOf(() => a.send(frame, 2));
  }
  check(code === "link-overflow", `a full queue threw ${code}`);
  check(a.bufferedBytes <= LINK_QUEUE_BYTES_MAX + MIB, `${a.bufferedBytes} bytes are held`);
  check(a.state === "open", "an overflow must not close the link");
  return Promise.resolve();
}

async function closeBothEnds({ a, b }: LinkPair): Promise<void> {
  const ends = [closed(a), closed(b)];
  a.close("the contributor left");
  const [own, other] = await Promise.all(ends);
  check(own === "the contributor left", `own end said: ${own}`);
  check(other!.includes("the contributor left"), `other end said: ${other}`);
  check(a.state === "closed" && b.state === "closed", "both ends must be closed");
}

async function sendAfterClose({ a, b }: LinkPair): Promise<void> {
  const end = closed(b);
  a.close("done");
  await end;
  for (const link of [a, b]) {
    const code = codeOf(() => link.send(new Uint8Array(1), 0));
    check(code === "link-closed", `send after close threw ${code}`);
  }
}

async function closeMidFrame({ a, b }: LinkPair): Promise<void> {
  let partial = 0;
  b.onframe = () => partial++;
  const end = closed(b);
  a.send(new Uint8Array(32 * MIB), 2);
  a.close("cut off");
  await end;
  check(partial === 0, `${partial} frames were delivered`);
  check(a.bufferedBytes === 0, "a closed link must hold nothing");
}

async function garbage({ a, b, inject }: LinkPair): Promise<void> {
  const ends = [closed(a), closed(b)];
  const bytes = new Uint8Array(100).fill(0xff);
  bytes[13] = 1;
  inject(bytes);
  const [other, own] = await Promise.all(ends);
  check(own!.startsWith("bad-frame"), `the receiver said: ${own}`);
  check(other!.includes("bad-frame"), `the sender was told: ${other}`);
}

async function counters({ a, b }: LinkPair): Promise<void> {
  const arrived = frames(b, 4);
  for (let i = 0; i < 4; i++) a.send(patternFrame(10_000, i), 0);
  await arrived;
  // The ping left when the link opened; an echo of ours proves that its answer had time to come.
  const echo = frames(a, 1);
  b.send(new Uint8Array(1), 0);
  await echo;
  const up = a.stats();
  const down = b.stats();
  check(up.framesUp === 4 && down.framesDown === 4, `frames: ${up.framesUp} up, ${down.framesDown} down`);
  check(up.bytesUp >= 40_000 && down.bytesDown >= 40_000, `bytes: ${up.bytesUp} up, ${down.bytesDown} down`);
  check(Number.isFinite(up.rttMs) && up.rttMs > 0, `round trip of ${up.rttMs} ms`);
}

function frames(link: Link, count: number): Promise<Uint8Array[]> {
  const got: Uint8Array[] = [];
  return new Promise((resolve, reject) => {
    link.onframe = (frame) => {
      got.push(frame);
      if (got.length === count) resolve(got);
    };
    const before = link.onstate;
    link.onstate = (state, reason) => {
      before?.(state, reason);
      if (state === "closed") {
        reject(new Error(`link closed after ${got.length} of ${count} frames: ${reason}`));
      }
    };
  });
}

function closed(link: Link): Promise<string> {
  return new Promise((resolve) => {
    link.onstate = (state: LinkState, reason: string) => {
      if (state === "closed") resolve(reason);
    };
  });
}

function codeOf(action: () => void): string {
  try {
    action();
    return "nothing";
  } catch (error) {
    return error instanceof ShoalError ? error.code : String(error);
  }
}

function check(condition: boolean, problem: string): void {
  if (!condition) throw new Error(problem);
}

async function within(task: Promise<void>, name: string): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`"${name}" did not finish in ${CASE_TIMEOUT_MS} ms`)),
      CASE_TIMEOUT_MS,
    );
  });
  try {
    await Promise.race([task, late]);
  } finally {
    clearTimeout(timer);
  }
}
