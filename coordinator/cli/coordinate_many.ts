// `shoal coordinator --runs_dir DIR`: serves every run of a folder until it is interrupted. The runs live in coordinator/hub; here are
// flags, lines for people, and the end.
import { join, resolve } from "node:path";
import { startHub } from "../hub/start.ts";
import { readConfig } from "../../peer/model/config.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ConfigWish } from "../../peer/wire/hub.ts";
import { fileConfig } from "./coordinate.ts";
import type { CoordinatorEventLine } from "../core/run_state.ts";
import { aborted, listenForInterrupts } from "./interrupts.ts";
import { integerFlag, positional, type VerbOptions } from "./options.ts";
import { noteText, processReporter } from "./report.ts";
import { repositoryRoot } from "./root.ts";

/** Flags that mean one run; the page makes runs here. */
const OF_ONE_RUN = ["out_dir", "name", "or_resume", "public_text"];
/** What a text is and how it is cut is said when it is brought. */
const OF_ONE_TEXT = ["dataset", "tokenizer", "column"] as const;

/** Resolves to the exit code. @throws {ShoalError} usage for flags that are of a single run */
export async function coordinateMany(options: VerbOptions): Promise<number> {
  positional(options, 0);
  const { flags } = options;
  refuseFlagsOfOneRun(options);
  const defaults = await defaultsIn(flags.config);
  const interrupts = listenForInterrupts();
  const reporter = processReporter({ json: flags.json !== undefined, maxIters: 0 });
  const say = (id: string, text: string) => reporter.note(`${id}: ${text}`);
  try {
    const server = await startHub({
      runsDir: resolve(flags.runs_dir!),
      host: flags.host ?? "127.0.0.1",
      port: integerFlag(options, "port", { absent: 0, min: 0, max: 65_535 }),
      operator: flags.operator ?? "someone who gave no name",
      webRoot: join(repositoryRoot, "web", "dist"),
      defaults,
      ...(flags.public_url === undefined ? {} : { publicUrl: flags.public_url }),
      onEvent: flags.json === undefined ? (id, line) => tell(say, id, line) : printLine,
      onNote: say,
    });
    if (flags.json !== undefined) {
      console.log(JSON.stringify({ event: "listening", runs: server.publicLink, admin: server.adminLink }));
    }
    reporter.note(`runs       ${server.publicLink}\norganizer  ${server.adminLink}`);
    await aborted(interrupts.signal);
    reporter.note("writing the runs' checkpoints; press Ctrl-C again to end at once");
    await server.stop("its coordinator was stopped; it goes on when it is started again", { finish: true });
    return 0;
  } finally {
    interrupts.close();
  }
}

function refuseFlagsOfOneRun({ flags, config }: VerbOptions): void {
  const named = [...OF_ONE_RUN.filter((name) => flags[name] !== undefined), ...Object.keys(config)][0];
  if (named === undefined) return;
  throw new ShoalError(
    "usage",
    `--${named} is of one run; with --runs_dir runs are made on the runs page, or leave --runs_dir out`,
  );
}

/** Keys that new runs have unless their makers say otherwise, such as iceServers. @throws {ShoalError} bad-config */
async function defaultsIn(path: string | undefined): Promise<ConfigWish> {
  const given = await fileConfig(path);
  readConfig(given);
  const named = OF_ONE_TEXT.find((key) => given[key] !== undefined);
  if (named === undefined) return given;
  const remedy = "leave it out, and choose the text on the runs page";
  throw new ShoalError("bad-config", `${named} in "${path}" is of one run; ${remedy}`);
}

function printLine(run: string, line: CoordinatorEventLine): void {
  console.log(JSON.stringify({ run, ...line }));
}

/** Steps are on the page; a line for each of several runs would be a flood. */
function tell(say: (id: string, text: string) => void, id: string, line: CoordinatorEventLine): void {
  if (line.event === "step") return;
  const text = noteText(line, (part) => part);
  if (text !== null) say(id, text);
}
