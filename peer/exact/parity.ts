// A state file in k equal shards and one XOR parity shard (RAID 5 over memories of peers, as REFT does, arXiv 2310.12670):
// any k of the k + 1 give the file back. Not transport, and no cryptography: hashes find faults, not forgers. A restored
// file is given out only if its hash is the one that every shard carries.
import { assert, refuse, type Result } from "../wire/errors.ts";
import { HASH_DIGITS, hashBytes } from "./chunk_hashes.ts";

/** More data shards spare little memory and make one snapshot wait for more peers. */
export const DATA_SHARDS_MAX = 4;
/** What one snapshot may make its receivers allocate: 90 M parameters of 12 bytes in one stage. */
export const SNAPSHOT_BYTES_MAX = 1 << 30;
/** Shards begin and end on whole Murmur blocks, so that they hash and XOR by words. */
const SHARD_ALIGNMENT = 16;
const WORD = 4;
const U32_MAX = 0xffff_ffff;
const U16_MAX = 0xffff;

/** Which snapshot: equal in all its shards. */
export interface SnapshotId {
  /** Committed steps contained in the state. */
  step: number;
  /** The stage by its layers, first and one past the last: a number of a stage means nothing after the next cut. */
  firstLayer: number;
  endLayer: number;
  /** Data shards, 1..DATA_SHARDS_MAX. */
  k: number;
  /** Length of the state file. */
  totalBytes: number;
  /** hashBytes of the state file. */
  hash: string;
}

/** Which shard of it: 0..k-1 are data, k is the parity. */
export interface ShardId extends SnapshotId {
  index: number;
}

export interface Shard {
  id: ShardId;
  /** shardBytes(totalBytes, k) bytes. */
  bytes: Uint8Array;
}

export interface Restored {
  file: Uint8Array;
  /** Index of a shard that was found damaged and left out; null if all that were used were sound. */
  damaged: number | null;
}

/** Length of each shard of a file. */
export function shardBytes(totalBytes: number, k: number): number {
  return Math.ceil(totalBytes / k / SHARD_ALIGNMENT) * SHARD_ALIGNMENT;
}

/** What is wrong with an id that came from outside, or null. */
export function shardIdProblem(id: ShardId): string | null {
  const { step, firstLayer, endLayer, k, index, totalBytes, hash } = id;
  if (!within(k, 1, DATA_SHARDS_MAX)) return `${k} data shards, allowed are 1 to ${DATA_SHARDS_MAX}`;
  if (!within(index, 0, k)) return `shard ${index} of ${k} and a parity`;
  if (!within(totalBytes, 1, SNAPSHOT_BYTES_MAX)) {
    return `a file of ${totalBytes} bytes, the limit is ${SNAPSHOT_BYTES_MAX}`;
  }
  if (!within(step, 0, U32_MAX)) return `step ${step}`;
  if (!within(firstLayer, 0, U16_MAX) || !within(endLayer, firstLayer + 1, U16_MAX)) {
    return `layers ${firstLayer} to ${endLayer}`;
  }
  return hash.length === HASH_DIGITS && /^[0-9a-f]+$/.test(hash) ? null : "a malformed hash";
}

function within(value: number, least: number, most: number): boolean {
  return Number.isInteger(value) && value >= least && value <= most;
}

/** True if both are shards of one snapshot. */
export function sameSnapshot(a: SnapshotId, b: SnapshotId): boolean {
  return a.step === b.step && a.firstLayer === b.firstLayer && a.endLayer === b.endLayer && a.k === b.k &&
    a.totalBytes === b.totalBytes && a.hash === b.hash;
}

/** All k + 1 shards. Data shards are views into `file` where no padding is needed: keep it unchanged while they live. */
export function cutShards(
  file: Uint8Array,
  about: { step: number; firstLayer: number; endLayer: number; k: number },
): Shard[] {
  const { step, firstLayer, endLayer, k } = about;
  const id: SnapshotId = { step, firstLayer, endLayer, k, totalBytes: file.length, hash: hashBytes(file) };
  const problem = shardIdProblem({ ...id, index: 0 });
  assert(problem === null, `cannot cut a snapshot: ${problem}`);
  const size = shardBytes(file.length, k);
  const pieces = Array.from({ length: k }, (_, i) => padded(file.subarray(i * size, (i + 1) * size), size));
  return [...pieces, xorOf(pieces, size)].map((bytes, index) => ({ id: { ...id, index }, bytes }));
}

function padded(piece: Uint8Array, size: number): Uint8Array {
  if (piece.length === size && piece.byteOffset % WORD === 0) return piece;
  const copy = new Uint8Array(size);
  copy.set(piece);
  return copy;
}

function xorOf(pieces: readonly Uint8Array[], size: number): Uint8Array {
  const sum = new Uint32Array(size / WORD);
  for (const piece of pieces) {
    const words = new Uint32Array(piece.buffer, piece.byteOffset, size / WORD);
    for (let i = 0; i < sum.length; i++) sum[i]! ^= words[i]!;
  }
  return new Uint8Array(sum.buffer);
}

/**
 * The state file out of at least k distinct shards of one snapshot. With all k + 1 a single damaged shard is found, left out
 * and named. Refuses with bad-snapshot: too few, repeated or foreign shards, a wrong length, or no choice of k
 * shards that gives the hash.
 */
export function restoreFile(shards: readonly Shard[]): Result<Restored> {
  const first = shards[0];
  if (first === undefined) return refuse("bad-snapshot", "there is no shard");
  const problem = shardIdProblem(first.id) ?? inconsistency(shards, first.id);
  if (problem !== null) return refuse("bad-snapshot", problem);
  const { k, hash } = first.id;
  if (shards.length < k) return refuse("bad-snapshot", `${shards.length} shards of the ${k} that are needed`);
  const sorted = shards.toSorted((a, b) => a.id.index - b.id.index);
  // With a shard to spare each is left out in turn, the parity first: then nothing must be computed.
  const spares = sorted.length > k ? sorted.toReversed() : [null];
  for (const spare of spares) {
    const file = join(sorted.filter((shard) => shard !== spare), first.id);
    if (file === null || hashBytes(file) !== hash) continue;
    return { ok: true, value: { file, damaged: spare === null ? null : damageOf(spare, sorted) } };
  }
  return refuse("bad-snapshot", `no ${k} of the ${shards.length} shards give the file's hash`);
}

function inconsistency(shards: readonly Shard[], first: ShardId): string | null {
  const size = shardBytes(first.totalBytes, first.k);
  const seen = new Set<number>();
  for (const { id, bytes } of shards) {
    if (!sameSnapshot(id, first)) return `shards of two snapshots, of steps ${first.step} and ${id.step}`;
    if (!within(id.index, 0, id.k) || seen.has(id.index)) return `shard ${id.index} twice or out of range`;
    if (bytes.length !== size) return `shard ${id.index} has ${bytes.length} bytes instead of ${size}`;
    seen.add(id.index);
  }
  return null;
}

/** The file from exactly k shards in order of index; null if the padding is not zero. */
function join(shards: readonly Shard[], id: SnapshotId): Uint8Array | null {
  const size = shardBytes(id.totalBytes, id.k);
  const whole = new Uint8Array(size * id.k);
  for (const shard of shards) if (shard.id.index < id.k) whole.set(shard.bytes, shard.id.index * size);
  const lost = lostIndex(shards, id.k);
  if (lost !== null) whole.set(xorOf(shards.map((shard) => padded(shard.bytes, size)), size), lost * size);
  const rest = whole.subarray(id.totalBytes);
  return rest.every((byte) => byte === 0) ? whole.subarray(0, id.totalBytes) : null;
}

function lostIndex(shards: readonly Shard[], k: number): number | null {
  for (let i = 0; i < k; i++) if (!shards.some((shard) => shard.id.index === i)) return i;
  return null;
}

/** The file is sound without `spare`; it is damaged if it is not what the sound ones make it. */
function damageOf(spare: Shard, all: readonly Shard[]): number | null {
  const others = all.filter((shard) => shard !== spare).map((shard) =>
    padded(shard.bytes, shard.bytes.length)
  );
  const expected = xorOf(others, spare.bytes.length);
  return expected.every((byte, i) => byte === spare.bytes[i]) ? null : spare.id.index;
}
