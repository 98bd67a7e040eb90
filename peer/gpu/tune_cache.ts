// What a tuning found, kept over restarts: one note per adapter and provider. A note that is damaged, of another format, of
// other kernels or of another adapter is passed over and overwritten; nothing depends on it.
import { hashBytes } from "../exact/chunk_hashes.ts";
import type { KernelSpec } from "./kernel.ts";
import { kernelSpecs } from "./kernels/index.ts";
import { MATMUL_FAMILY } from "./kernels/matmul_family.ts";
import { MATMUL_FUSIONS } from "./kernels/matmul_fused.ts";
import { shaderLibrary } from "./library.ts";
import type { Notes } from "../store/notes.ts";
import { linkShader } from "./link.ts";
import type { Excluded, TunedChoice, TunedFusion, TuneResult } from "./tune.ts";

/** Classes per result; the family knows some 18. A longer list is not ours. */
const CHOICES_MAX = 64;
const FORMAT = "shoal-tuning-2";

/** Hash of the WGSL of all matrix products. */
export function kernelVersion(specs: readonly KernelSpec[] = kernelSpecs): string {
  const texts = specs.filter(({ name }) => name.startsWith("matmul"))
    .map(({ wgsl, overrides }) => `${linkShader(wgsl, shaderLibrary)}\n${JSON.stringify(overrides)}`);
  return hashBytes(new TextEncoder().encode(texts.join("\n")));
}

type Key = Pick<TuneResult, "adapter" | "provider" | "kernelVersion">;

function noteName({ adapter, provider }: Key): string {
  return `tuning ${provider} ${adapter}`;
}

/** The result for exactly this adapter, provider and family; null if there is none. */
export async function readTuning(notes: Notes, key: Key): Promise<TuneResult | null> {
  const result = decodeTuning(await notes.get(noteName(key)));
  const known = result !== null && result.adapter === key.adapter && result.provider === key.provider &&
    result.kernelVersion === key.kernelVersion;
  return known ? result : null;
}

/** Takes the place of what was known of this adapter and provider. */
export async function writeTuning(notes: Notes, result: TuneResult): Promise<void> {
  await notes.set(noteName(result), JSON.stringify({ format: FORMAT, result }));
}

/** The result in a note; null if it is damaged. */
export function decodeTuning(text: string | null): TuneResult | null {
  if (text === null) return null;
  try {
    const note: unknown = JSON.parse(text);
    return isRecord(note) && note.format === FORMAT && isResult(note.result) ? note.result : null;
  } catch {
    return null;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function isResult(value: unknown): value is TuneResult {
  return isRecord(value) &&
    [value.adapter, value.provider, value.kernelVersion].every((text) => typeof text === "string") &&
    isMeasure(value.spentMs) &&
    isList(value.choices, isChoice) && isList(value.fusions, isFusion) && isList(value.excluded, isExcluded);
}

function isList<T>(value: unknown, isItem: (item: unknown) => item is T): value is T[] {
  return Array.isArray(value) && value.length <= CHOICES_MAX && value.every(isItem);
}

function isChoice(value: unknown): value is TunedChoice {
  return isRecord(value) && typeof value.class === "string" && isMeasure(value.gflops) &&
    MATMUL_FAMILY.some(({ name }) => name === value.member) &&
    isCount(value.slices) && isRecord(value.shape) &&
    [value.shape.M, value.shape.N, value.shape.K].every(isCount);
}

function isFusion(value: unknown): value is TunedFusion {
  return isRecord(value) && MATMUL_FUSIONS.some((known) => known === value.fusion) && isMeasure(value.gain);
}

function isExcluded(value: unknown): value is Excluded {
  return isRecord(value) && typeof value.kernel === "string" && typeof value.reason === "string";
}

function isMeasure(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value) && value >= 0;
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && Number(value) >= 1;
}
