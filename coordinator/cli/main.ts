// The verbs of the command line, bound to the modules that do the work: the composition root of the program.
// Started by shoal.mjs with the verb's own permissions. stdout is data, stderr is for people; 0 done, 1 failed, 2 usage.
import { type ErrorCode, messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { coordinate, newRunOptions, resumedRunOptions } from "./coordinate.ts";
import { listenForInterrupts } from "./interrupts.ts";
import {
  engineFlag,
  limitFlags,
  parseVerb,
  positional,
  requiredFlag,
  verbNamed,
  type VerbOptions,
} from "./options.ts";
import { verbHelp } from "./usage.mjs";

/** Mistakes in what was typed, as opposed to failures of the work. */
const USAGE_CODES: readonly ErrorCode[] = ["usage", "bad-config"];

const actions: Readonly<Record<string, (options: VerbOptions) => Promise<number>>> = {
  coordinator: async (options) => {
    if (options.flags.runs_dir === undefined) {
      return await coordinate(await newRunOptions(options), options.flags);
    }
    return await (await import("./coordinate_many.ts")).coordinateMany(options);
  },
  resume: async (options) => await coordinate(await resumedRunOptions(options), options.flags),
  peer,
  run: async (options) => await (await import("./run.ts")).runHere(options),
  demo: async (options) => await (await import("./demo.ts")).demo(options),
  generate: write,
  import: bringIn,
  eval: measure,
  serve: async (options) => await (await import("./serve.ts")).serve(options),
  corpus: keepTexts,
  export: exportFiles,
  doctor: async (options) => {
    positional(options, 0);
    const { runDoctor } = await import("../../peer/doctor.ts");
    return await runDoctor({ json: options.flags.json !== undefined });
  },
};

async function peer(options: VerbOptions): Promise<number> {
  positional(options, 0);
  const link = requiredFlag(options, "join");
  const engine = engineFlag(options);
  const { name, json, state_dir: stateDir } = options.flags;
  // Loaded here only: its native add-ons need a permission that no other verb is given.
  const { runPeer } = await import("../../peer/deno.ts");
  const interrupts = listenForInterrupts();
  try {
    return await runPeer({
      join: link,
      json: json !== undefined,
      signal: interrupts.signal,
      hard: interrupts.hard,
      ...(name === undefined ? {} : { name }),
      ...(engine === undefined ? {} : { engine }),
      ...(stateDir === undefined ? {} : { stateDir }),
      ...limitFlags(options),
    });
  } finally {
    interrupts.close();
  }
}

async function write(options: VerbOptions): Promise<number> {
  const { generate } = await import("./generate.ts");
  await generate(options, { data: writeOut, note: (text) => console.error(text) });
  return 0;
}

async function exportFiles(options: VerbOptions): Promise<number> {
  const { exportModel } = await import("./export.ts");
  const redraw = (text: string) => Deno.stderr.writeSync(new TextEncoder().encode(`\r\x1b[K${text}`));
  const result = await exportModel(options, {
    note: (text) => console.error(text),
    progress: Deno.stderr.isTerminal() ? redraw : null,
  });
  console.log(options.flags.json === undefined ? result.out : JSON.stringify(result));
  return 0;
}

async function measure(options: VerbOptions): Promise<number> {
  const { runEval } = await import("./eval.ts");
  await runEval(options, outputWithProgress());
  return 0;
}

async function keepTexts(options: VerbOptions): Promise<number> {
  const [{ runCorpus }, { processCorpusProgress }] = await Promise.all([
    import("./corpus.ts"),
    import("./corpus_progress.ts"),
  ]);
  const progress = processCorpusProgress(options.flags.json !== undefined);
  try {
    await runCorpus(options, {
      data: (text) => writeOut(`${text}\n`),
      note: (text) => console.error(text),
      progress: progress.show,
    });
  } finally {
    progress.end();
  }
  return 0;
}

async function bringIn(options: VerbOptions): Promise<number> {
  const { runImport } = await import("./import.ts");
  await runImport(options, outputWithProgress());
  return 0;
}

/** Data to stdout, notes to stderr, and a line that is drawn anew where there is a terminal. */
function outputWithProgress() {
  const progress = (text: string) => writeTo(Deno.stderr, `\r\x1b[K${text}`);
  return {
    ...{ data: writeOut, note: (text: string) => console.error(text) },
    progress: Deno.stderr.isTerminal() ? progress : null,
  };
}

/** Text to stdout as it is, at once. */
function writeOut(text: string): void {
  writeTo(Deno.stdout, text);
}

function writeTo(stream: typeof Deno.stdout, text: string): void {
  const bytes = new TextEncoder().encode(text);
  for (let at = 0; at < bytes.length;) at += stream.writeSync(bytes.subarray(at));
}

/** Runs one command line; resolves to the exit code. */
async function main([name = "", ...args]: readonly string[]): Promise<number> {
  try {
    const verb = verbNamed(name);
    const options = parseVerb(verb, args);
    if (options.flags.help !== undefined) {
      console.log(verbHelp(verb));
      return 0;
    }
    const action = actions[verb.name];
    if (!action) throw new ShoalError("internal", `the verb "${verb.name}" has no action`);
    return await action(options);
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    console.error(`shoal: ${error.message}`);
    return USAGE_CODES.includes(error.code) ? 2 : 1;
  }
}

if (import.meta.main) {
  try {
    Deno.exit(await main(Deno.args));
  } catch (error) {
    console.error(`shoal: ${messageOf(error)}`);
    if (error instanceof Error && error.stack !== undefined) console.error(error.stack);
    Deno.exit(1);
  }
}
