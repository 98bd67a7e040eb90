// What the bench programs share: flags that refuse what they do not know, medians, tables, and the end of a process.
// It measures nothing and knows no figures. A flag that means nothing is a `usage` error, which ends with code 2.
import { parseArgs, type ParseArgsOptionsConfig } from "node:util";
import { unknownMessage } from "../coordinator/cli/usage.mjs";
import { messageOf, ShoalError } from "../peer/wire/errors.ts";

/** Values of the flags in `options`. Throws `usage` on unknown flags, with the nearest known one, and on other words. */
export function flagValues<O extends ParseArgsOptionsConfig>(args: string[], options: O) {
  const names = Object.keys(options).map((name) => `--${name}`);
  const unknown = args.map((arg) => arg.split("=")[0]!).find((arg) =>
    arg.startsWith("--") && !names.includes(arg)
  );
  if (unknown !== undefined) {
    throw new ShoalError("usage", `${unknownMessage("flag", unknown, names)} See --help`);
  }
  try {
    return parseArgs({ args, options, strict: true, allowPositionals: false }).values;
  } catch (error) {
    throw new ShoalError("usage", `${messageOf(error)}; see --help`, { cause: error });
  }
}

/** The flag's text as a whole number within the bounds. Throws `usage`. */
export function wholeFlag(name: string, text: string, [min, max]: readonly [number, number]): number {
  const value = Number(text);
  if (text.trim() !== "" && Number.isInteger(value) && value >= min && value <= max) return value;
  throw new ShoalError("usage", `--${name} must be a whole number from ${min} to ${max}, got "${text}"`);
}

/** The one of `known` that the flag names. Throws `usage`. */
export function choiceFlag<T extends string>(name: string, text: string, known: readonly T[]): T {
  const found = known.find((choice) => choice === text);
  if (found !== undefined) return found;
  throw new ShoalError("usage", `--${name} must be one of ${known.join(", ")}, got "${text}"`);
}

/** Those of `known` that the flag names, separated by commas. Throws `usage`. */
export function choicesFlag<T extends string>(name: string, text: string, known: readonly T[]): T[] {
  return text.split(",").map((word) => {
    const found = known.find((choice) => choice === word);
    if (found !== undefined) return found;
    throw new ShoalError("usage", `--${name} must name some of ${known.join(", ")}, got "${word}"`);
  });
}

/** The middle value, the upper one of two; NaN of none. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? NaN;
}

/** (largest - smallest) / median: 0 of one value, NaN of none. */
export function spread(values: readonly number[]): number {
  return (Math.max(...values) - Math.min(...values)) / median(values);
}

/** NaN of none. */
export function geometricMean(values: readonly number[]): number {
  return Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** Rows of equal length as lines: the first column to the left, the others to the right. */
export function aligned(rows: readonly (readonly string[])[]): string[] {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows.map((row) =>
    row.map((cell, i) => i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!)).join("  ").trimEnd()
  );
}

/**
 * Runs a bench program and ends the process with its code (default 0), 2 on `usage` and 1 on other errors. It exits by itself
 * because native addons keep the process alive, and Dawn must not be unloaded under Deno.
 */
export async function runMain(main: (args: string[]) => Promise<number | void>): Promise<never> {
  try {
    Deno.exit(await main(Deno.args) ?? 0);
  } catch (error) {
    console.error(messageOf(error));
    Deno.exit(error instanceof ShoalError && error.code === "usage" ? 2 : 1);
  }
}
