// Numbers as a person reads them, the same in every browser (English digits and units). Pure; knows no page.
// A missing value is a word, never an empty string, so that a reading is never blank.

/** What stands where a value does not exist yet. */
export const NOT_YET = "not yet";

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB"] as const;
const COUNT_WORDS = ["", " thousand", " million", " billion", " trillion"] as const;

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1234567 -> "1,234,567". */
export function count(value: number): string {
  return plain.format(value);
}

/** Picks the power of 1000 such that the rounded figure stays below 1000. */
function scaled(value: number, steps: number): { figure: string; power: number } {
  let power = 0;
  let rest = Math.max(0, value);
  while (power < steps - 1 && Number(rest.toPrecision(3)) >= 1000) {
    rest /= 1000;
    power += 1;
  }
  const digits = power === 0 || rest >= 100 ? 0 : rest >= 10 ? 1 : 2;
  return { figure: String(Number(rest.toFixed(digits))), power };
}

/** 3400000 -> "3.4 MB" (decimal units). */
export function bytes(value: number): string {
  const { figure, power } = scaled(value, BYTE_UNITS.length);
  return `${figure} ${BYTE_UNITS[power]}`;
}

/** What a run trains; of adapters also beside what. */
export interface Parameters {
  params: number;
  baseParams?: number | undefined;
}

/** "1.2 million parameters", or "8.2 thousand parameters of adapters beside 1.2 million frozen ones". */
export function parametersText({ params, baseParams }: Parameters): string {
  const own = `${magnitude(params)} parameters`;
  return baseParams === undefined ? own : `${own} of adapters beside ${magnitude(baseParams)} frozen ones`;
}

/** "training a language model with 1.2 million parameters". */
export function trainingText(run: Parameters): string {
  const { params, baseParams } = run;
  if (baseParams === undefined) return `training a language model with ${parametersText(run)}`;
  return `fine-tuning a language model with ${magnitude(baseParams)} parameters (${
    magnitude(params)
  } more are trained)`;
}

/** 428800 -> "429 thousand". */
export function magnitude(value: number): string {
  const { figure, power } = scaled(value, COUNT_WORDS.length);
  return figure + COUNT_WORDS[power];
}

/** From two days on nobody reckons in hours. */
const DAYS_FROM_HOURS = 48;

/** Milliseconds -> "180 ms", "1.4 s", "2 min 5 s", "3 h 10 min". */
export function duration(ms: number): string {
  if (!(ms >= 0)) return NOT_YET;
  if (ms < 999.5) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${Number(seconds.toFixed(1))} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) - minutes * 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours >= DAYS_FROM_HOURS) {
    const whole = Math.floor(hours / 24);
    return `${whole} days ${hours - whole * 24} h`;
  }
  return `${hours} h ${minutes - hours * 60} min`;
}

/** Mean cross-entropy in nats, three decimals. */
export function loss(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? NOT_YET : value.toFixed(3);
}

/** Learning rates and norms: four significant digits, small values in powers of ten. */
export function significant(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return NOT_YET;
  if (value === 0) return "0";
  return Math.abs(value) < 0.001 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** Part of a whole as a whole percentage that says 100 only when complete. */
export function percent(part: number, whole: number): string {
  if (!(whole > 0)) return "0%";
  return `${Math.min(100, Math.max(0, Math.floor((part / whole) * 100)))}%`;
}

/** 1 -> "1 peer", 2 -> "2 peers", 3 -> "3 micro-batches". */
export function plural(value: number, noun: string): string {
  const ending = noun.endsWith("ch") ? "es" : "s";
  return `${count(value)} ${noun}${value === 1 ? "" : ending}`;
}

/** Layers [first, end) counted from zero -> "layer 3" or "layers 3 to 5", counted from one. */
export function layers(first: number, end: number): string {
  if (end <= first) return "no layers";
  return end - first === 1 ? `layer ${end}` : `layers ${first + 1} to ${end}`;
}

/** Milliseconds since the epoch -> local "14:03:09". */
export function clock(atMs: number): string {
  return new Date(atMs).toTimeString().slice(0, 8);
}

/** "the demo" -> "The demo": a name that someone typed, at the start of a sentence. */
export function sentenceCase(text: string): string {
  const [first = "", ...rest] = text;
  return first.toLocaleUpperCase("en") + rest.join("");
}
