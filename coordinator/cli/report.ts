// How a run's events read on a terminal: one live line with a progress bar, plain lines elsewhere, or JSON lines.
// Pure formatting plus a reporter over two write functions; it never decides anything about the run.
import type { CoordinatorEventLine } from "../main.ts";

type StepLine = Extract<CoordinatorEventLine, { event: "step" }>;
type DepartureLine = Extract<CoordinatorEventLine, { event: "departure" }>;
type HoldersLine = Extract<CoordinatorEventLine, { event: "holders" }>;
type DoneLine = Extract<CoordinatorEventLine, { event: "done" }>;

/** Columns of the bar itself. */
const BAR_COLUMNS = 24;
/** Plain lines in a short run; in a long one a line every so many steps, so that a log is neither silent nor a flood. */
const PLAIN_LINES = 20;
const PLAIN_STEPS_MAX = 100;
const CLEAR_LINE = "\r\x1b[K";

export interface ReporterOptions {
  json: boolean;
  /** The live line may be redrawn in place. */
  tty: boolean;
  color: boolean;
  maxIters: number;
  /** stderr: what people read. */
  log: (text: string) => void;
  /** stdout: data. */
  data: (text: string) => void;
}

export interface Reporter {
  event(line: CoordinatorEventLine): void;
  note(text: string): void;
}

/** 1234 -> "1.2k", 3.4e6 -> "3.4M"; below a thousand at most one decimal. */
export function compact(value: number): string {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]] as const) {
    // 999.95 k would print as "1000.0k".
    if (Math.abs(value) >= size * 0.99995) return `${(value / size).toFixed(1)}${unit}`;
  }
  return Math.abs(value) < 10 ? value.toFixed(1) : value.toFixed(0);
}

/** "3.0e-4", with a fixed width, so that the live line does not jitter. */
export function scientific(value: number): string {
  return value.toExponential(1);
}

export function stepText(line: StepLine): string {
  return [
    `step ${line.step}`,
    // Who computed it may have died before telling.
    `loss ${Number.isFinite(line["train/loss"]) ? line["train/loss"].toFixed(2) : "not told"}`,
    `lr ${scientific(line.lr)}`,
    `grad ${line.grad_norm.toFixed(2)}`,
    `${compact(line.tokens_per_s)} tok/s`,
    `${line.peers} ${line.peers === 1 ? "peer" : "peers"}`,
  ].join(" | ");
}

export function progressBar(step: number, maxIters: number): string {
  const share = maxIters > 0 ? Math.min(1, Math.max(0, step / maxIters)) : 0;
  const full = Math.floor(share * BAR_COLUMNS);
  return `[${"#".repeat(full)}${"-".repeat(BAR_COLUMNS - full)}] ${Math.floor(share * 100)}%`;
}

/** Whether a plain log gets a line for this step: the first, the last, and some between. */
export function isLogged(step: number, maxIters: number): boolean {
  const every = Math.min(PLAIN_STEPS_MAX, Math.max(1, Math.ceil(maxIters / PLAIN_LINES)));
  return step <= 1 || step >= maxIters || step % every === 0;
}

export function doneText(line: DoneLine): string {
  const sample = line.sample === "" ? [] : ["sample:", ...line.sample.split("\n").map((row) => `  ${row}`)];
  return [
    `finished at step ${line.step}`,
    `train/loss ${line["train/loss"].toFixed(4)}   val/loss ${line["val/loss"].toFixed(4)}`,
    `checkpoint ${line.checkpoint}`,
    ...sample,
  ].join("\n");
}

/** Who left, how late the next commit came, and what that cost; "nothing is lost" only where it is true. */
export function departureText(line: DepartureLine): string {
  const { peer, how, step, stall_ms, reassigned, steps_lost } = line;
  const late = stall_ms < 1 ? "on time" : `${timeText(stall_ms)} late`;
  if (steps_lost > 0) {
    return `${peer} left (${how}) after step ${step}: ${steps(steps_lost)} done again, as nobody else had ` +
      `its layers; the next step came ${late}`;
  }
  const taken = reassigned === 0 ? "" : `${count(reassigned, "micro-batch", "es")} went to others, `;
  return `${peer} left (${how}) in step ${step + 1}: ${taken}the step came ${late}, nothing is lost`;
}

/** Whether any one peer may vanish now. */
export function holdersText(line: HoldersLine): string {
  const alone = line.redundancy.flatMap((level, stage) => level === "none" ? [stage + 1] : []);
  if (alone.length === 0) return "every stage has a second holder: any one peer may vanish, nothing is lost";
  const which = alone.length === 1
    ? `stage ${alone[0]} has one holder: if it vanishes`
    : `stages ${alone.join(", ")} have one holder each: if one of them vanishes`;
  return `${which}, the steps since the newest snapshot are done again`;
}

function timeText(ms: number): string {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** "1 step is", "3 steps are". */
function steps(n: number): string {
  return `${count(n, "step", "s")} ${n === 1 ? "is" : "are"}`;
}

function count(n: number, noun: string, ending: string): string {
  return `${n} ${noun}${n === 1 ? "" : ending}`;
}

export function createReporter(options: ReporterOptions): Reporter {
  const { json, tty, color, maxIters, log, data } = options;
  let live = "";
  function note(text: string): void {
    if (live !== "") log(CLEAR_LINE);
    log(`${text}\n`);
    if (live !== "") log(live);
  }
  function step(line: StepLine): void {
    if (tty) {
      live = `${progressBar(line.step, maxIters)} ${stepText(line)}`;
      log(CLEAR_LINE + live);
    } else if (isLogged(line.step, maxIters)) note(stepText(line));
  }
  function show(line: CoordinatorEventLine): void {
    if (line.event === "step") return step(line);
    if (line.event === "done" && live !== "") {
      log("\n");
      live = "";
    }
    const text = noteText(line, (part) => color ? `\x1b[1m${part}\x1b[22m` : part);
    if (text !== null) note(text);
  }
  return {
    note,
    event(line) {
      if (json) data(`${JSON.stringify(line)}\n`);
      else show(line);
    },
  };
}

/** What a person reads about an event other than a step; null for what the next lines say anyway. */
export function noteText(
  line: Exclude<CoordinatorEventLine, StepLine>,
  bold: (text: string) => string,
): string | null {
  switch (line.event) {
    case "listening":
      return `join link   ${bold(line.join)}\nadmin page  ${bold(line.admin)}`;
    case "state":
      return `${bold(line.state)}: ${line.reason}`;
    case "eval":
      return `step ${line.step}: val/loss ${line["val/loss"].toFixed(4)}`;
    case "peer":
      return `peer ${line.id}: ${line.what}`;
    case "checkpoint":
      return `step ${line.step}: checkpoint ${line.path}`;
    case "rollback":
      return line.steps_redone === 0
        ? `back to step ${line.step}`
        : `back to step ${line.step}: ${steps(line.steps_redone)} done again, with the same data`;
    case "snapshot":
      return null;
    case "departure":
      return departureText(line);
    case "holders":
      return holdersText(line);
    case "sample":
      return null;
    case "done":
      return doneText(line);
  }
}

/** The reporter of this process: stderr for people, stdout for data, NO_COLOR and pipes respected. */
export function processReporter(options: { json: boolean; maxIters: number }): Reporter {
  const encoder = new TextEncoder();
  const tty = Deno.stderr.isTerminal();
  return createReporter({
    ...options,
    tty,
    color: tty && !Deno.noColor,
    log: (text) => writeAll(Deno.stderr, encoder.encode(text)),
    data: (text) => writeAll(Deno.stdout, encoder.encode(text)),
  });
}

/** A pipe may take less than it is given. A reader that has gone away (`| head`) is no failure of the run. */
function writeAll(writer: { writeSync(bytes: Uint8Array): number }, bytes: Uint8Array): void {
  try {
    for (let offset = 0; offset < bytes.length;) offset += writer.writeSync(bytes.subarray(offset));
  } catch (error) {
    if (!(error instanceof Deno.errors.BrokenPipe)) throw error;
  }
}
