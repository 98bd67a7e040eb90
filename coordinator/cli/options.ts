// Command-line arguments of a verb -> checked flags and configuration keys. Pure: no files, no process.
// Every flag comes from the table in usage.mjs; anything else is an error that names the nearest known name.
import { parseArgs } from "node:util";
import { CONFIG_KEYS, isConfigKey, parseConfigValue } from "../../peer/model/config.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { DUTY_MIN, MEMORY_BYTES_MIN, RATE_BYTES_PER_S_MIN } from "../../peer/wire/limits.ts";
import { ENGINES, type EngineWish, isEngineWish } from "../../peer/wire/status.ts";
import { pairsAsFlags } from "./pairs.mjs";
import { unknownMessage, type Verb, verbs } from "./usage.mjs";

export interface VerbOptions {
  /** Text of each flag given; a switch is "true". */
  flags: Readonly<Record<string, string>>;
  /** Configuration keys given as flags, parsed to their types, not yet judged (readConfig does). */
  config: Readonly<Record<string, unknown>>;
  positionals: readonly string[];
  /** All texts of each flag that was given, in order: for those that may be given several times. */
  repeated?: Readonly<Record<string, readonly string[]>>;
}

export function verbNamed(name: string): Verb {
  const verb = verbs.find((candidate) => candidate.name === name);
  if (verb) return verb;
  throw new ShoalError("usage", unknownMessage("verb", name, verbs.map((candidate) => candidate.name)));
}

/**
 * Reads `--flag value`, `--flag=value` and, for verbs with configuration keys, `key=value`; a flag given twice keeps its last value.
 * @throws {ShoalError} usage for an unknown flag, a missing value, or a value for a switch.
 */
export function parseVerb(verb: Verb, given: readonly string[]): VerbOptions {
  const args = pairsAsFlags(verb, given);
  const known = [...verb.flags.map((flag) => flag.name), ...(verb.config ? CONFIG_KEYS : [])];
  refuseUnknown(args, known);
  const options: Record<string, { type: "string" | "boolean"; multiple: true }> = {};
  for (const name of known) {
    options[name] = { type: isSwitch(verb, name) ? "boolean" : "string", multiple: true };
  }
  const { values, positionals } = strictly(() =>
    parseArgs({ args: [...args], options, allowPositionals: true })
  );
  const flags: Record<string, string> = {}, repeated: Record<string, string[]> = {};
  const config: Record<string, unknown> = {};
  for (const [name, all] of Object.entries(values)) {
    const texts = [all].flat().map(String), value = texts.at(-1)!;
    const isFlag = verb.flags.some((flag) => flag.name === name);
    if (!isFlag && isConfigKey(name)) config[name] = parseConfigValue(name, value);
    else [flags[name], repeated[name]] = [value, texts];
  }
  return { flags, config, positionals, repeated };
}

function refuseUnknown(args: readonly string[], known: readonly string[]): void {
  const { tokens } = parseArgs({ args: [...args], strict: false, tokens: true, allowPositionals: true });
  for (const token of tokens) {
    if (token.kind !== "option" || known.includes(token.name)) continue;
    throw new ShoalError("usage", unknownMessage("flag", token.rawName, known.map((name) => `--${name}`)));
  }
}

function isSwitch(verb: Verb, name: string): boolean {
  return verb.flags.some((flag) => flag.name === name && flag.value === null);
}

function strictly<T>(parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    throw new ShoalError("usage", messageOf(error), { cause: error });
  }
}

/** A flag that counts something. @throws {ShoalError} usage with the value and the bounds. */
export function integerFlag(
  options: VerbOptions,
  name: string,
  { absent, min, max }: { absent: number; min: number; max: number },
): number {
  return numberFlag(options, name, { absent, min, max, whole: true });
}

/** @throws {ShoalError} usage with the value and the bounds. */
export function numberFlag(
  options: VerbOptions,
  name: string,
  { absent, min, max, whole = false }: { absent: number; min: number; max: number; whole?: boolean },
): number {
  const text = options.flags[name];
  if (text === undefined) return absent;
  const value = Number(text);
  const fits = text.trim() !== "" && value >= min && value <= max && (!whole || Number.isInteger(value));
  if (fits) return value;
  const kind = whole ? "an integer" : "a number";
  throw new ShoalError("usage", `--${name} is "${text}"; use ${kind} from ${min} to ${max}`);
}

/** @throws {ShoalError} usage if the flag is missing or empty. */
export function requiredFlag(options: VerbOptions, name: string): string {
  const text = options.flags[name];
  if (text) return text;
  throw new ShoalError("usage", `--${name} is missing; give it a value`);
}

/** @throws {ShoalError} usage if there are more positional arguments than the verb has. */
export function positional(options: VerbOptions, most: 0 | 1): string | undefined {
  const extra = options.positionals[most];
  if (extra === undefined) return options.positionals[0];
  const use = "flags start with --, configuration keys are written key=value";
  throw new ShoalError("usage", `"${extra}" is not expected here; ${use}`);
}

/** What `--engine` names; undefined if it is not given. @throws {ShoalError} usage with the nearest known name. */
export function engineFlag(options: VerbOptions): EngineWish | undefined {
  const { engine } = options.flags;
  if (engine === undefined || isEngineWish(engine)) return engine;
  const known = ["auto", ...ENGINES];
  throw new ShoalError("usage", `${unknownMessage("engine", engine, known)}; use ${known.join(", ")}`);
}

/** What the owner of a peer allows, in the units of RunPeerOptions. @throws {ShoalError} usage with the bounds. */
export function limitFlags(options: VerbOptions) {
  const { flags } = options;
  const most = (name: string, unit: number, least: number) =>
    flags[name] === undefined
      ? null
      : unit * numberFlag(options, name, { absent: 0, min: least / unit, max: 1e9 });
  const day = most("daily", 1e6, 1e6);
  return {
    limits: {
      duty: numberFlag(options, "duty", { absent: 100, min: DUTY_MIN * 100, max: 100 }) / 100,
      memoryBytes: most("memory", 1e6, MEMORY_BYTES_MIN),
      upBytesPerS: most("up_rate", 1e3, RATE_BYTES_PER_S_MIN),
      downBytesPerS: most("down_rate", 1e3, RATE_BYTES_PER_S_MIN),
    },
    ...(day === null ? {} : { dayBytes: day }),
  };
}

/** A name as a folder name: lower case, digits and hyphens, never empty and never outside its parent. */
export function folderName(name: string): string {
  return name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "run";
}
