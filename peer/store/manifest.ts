// The list of what a store holds: which file is the newest content of which name, with its hash. Text with a hash of itself,
// so that a torn or altered list is noticed. Pure; where it lies and when it is written is store.ts's to say.
import { hashBytes } from "../exact/chunk_hashes.ts";
import { refuse, type Result } from "../wire/errors.ts";

export const MANIFEST_FORMAT = "shoal-store-1";
/** Names in one store: the stages that one peer may hold in a few runs. */
export const NAMES_MAX = 256;
/** The newest content of a name and the one before it. */
export const COPIES_MAX = 2;
/** A longer list is not ours. */
export const MANIFEST_BYTES_MAX = 1 << 20;
/** Names: a run's id, layers. Nothing that a file system could misread is ever a file's name, but lists are shown to people. */
export const NAME_PATTERN = /^[A-Za-z0-9._-]{1,128}$/;
const FILE_PATTERN = /^data-\d{1,15}$/;
const HASH_PATTERN = /^[0-9a-f]{32}$/;

export interface Copy {
  file: string;
  bytes: number;
  hash: string;
}

export interface Entry {
  name: string;
  /** Newest first, 1 to COPIES_MAX. */
  copies: Copy[];
}

export interface Manifest {
  /** Grows by one with each change; the larger of two valid lists is the newer. */
  seq: number;
  /** Number of the next content file: no name is ever used twice. */
  next: number;
  /** Ordered by the time of writing, oldest first. */
  entries: Entry[];
}

export const EMPTY_MANIFEST: Manifest = { seq: 0, next: 0, entries: [] };

export function encodeManifest({ seq, next, entries }: Manifest): Uint8Array<ArrayBuffer> {
  const body = JSON.stringify({ format: MANIFEST_FORMAT, seq, next, entries });
  return encoded(`${hashBytes(encoded(body))}\n${body}\n`);
}

function encoded(text: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(text);
}

/** Reads a list. Never throws: refuses with storage-damaged what encodeManifest has not written. */
export function decodeManifest(bytes: Uint8Array): Result<Manifest> {
  if (bytes.length >= MANIFEST_BYTES_MAX) {
    return refuse("storage-damaged", `a list of ${bytes.length} bytes, the limit is ${MANIFEST_BYTES_MAX}`);
  }
  const [hash, body, rest, ...more] = new TextDecoder().decode(bytes).split("\n");
  if (hash === undefined || body === undefined || rest !== "" || more.length > 0) {
    return refuse("storage-damaged", "the list is cut short");
  }
  if (hash !== hashBytes(encoded(body))) return refuse("storage-damaged", "the list differs from its hash");
  const manifest = readBody(body);
  return manifest === null
    ? refuse("storage-damaged", "the list has another form")
    : { ok: true, value: manifest };
}

function readBody(body: string): Manifest | null {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch {
    return null;
  }
  if (!isRecord(value) || value.format !== MANIFEST_FORMAT) return null;
  const { seq, next, entries } = value;
  if (!isCount(seq) || !isCount(next) || !Array.isArray(entries) || entries.length > NAMES_MAX) return null;
  return entries.every(isEntry) ? { seq, next, entries } : null;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isEntry(value: unknown): value is Entry {
  if (!isRecord(value) || typeof value.name !== "string" || !NAME_PATTERN.test(value.name)) return false;
  const { copies } = value;
  return Array.isArray(copies) && copies.length > 0 && copies.length <= COPIES_MAX && copies.every(isCopy);
}

function isCopy(value: unknown): value is Copy {
  return isRecord(value) && isCount(value.bytes) && typeof value.file === "string" &&
    FILE_PATTERN.test(value.file) && typeof value.hash === "string" && HASH_PATTERN.test(value.hash);
}
