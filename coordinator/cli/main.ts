// The verbs of the command line, bound to the modules that do the work: the composition root of the program.
// Started by shoal.mjs with the verb's own permissions. stdout is data, stderr is for people; 0 done, 1 failed, 2 usage.
import { type ErrorCode, messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { coordinate, newRunOptions, resumedRunOptions } from "./coordinate.ts";
import { listenForInterrupts } from "./interrupts.ts";
import { engineFlag, parseVerb, positional, requiredFlag, verbNamed, type VerbOptions } from "./options.ts";
import { verbHelp } from "./usage.mjs";

/** Mistakes in what was typed, as opposed to failures of the work. */
const USAGE_CODES: readonly ErrorCode[] = ["usage", "bad-config"];

const actions: Readonly<Record<string, (options: VerbOptions) => Promise<number>>> = {
  coordinator: async (options) => await coordinate(await newRunOptions(options), options.flags),
  resume: async (options) => await coordinate(await resumedRunOptions(options), options.flags),
  peer,
  demo: async (options) => await (await import("./demo.ts")).demo(options),
  generate: write,
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
    });
  } finally {
    interrupts.close();
  }
}

async function write(options: VerbOptions): Promise<number> {
  const { generate } = await import("./generate.ts");
  const result = await generate(options);
  if (options.flags.json !== undefined) console.log(JSON.stringify(result));
  else {
    console.error(`step ${result.step} of ${result.checkpoint}`);
    console.log(result.prompt + result.text);
  }
  return 0;
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
