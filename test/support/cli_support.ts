// Shoal's command line as child processes, with exactly the permissions that shoal.mjs would give them. Whatever a test
// starts is ended by its disposer, by process id; waits are generous and end with what the process had said.
import { fileURLToPath } from "node:url";
import { permissionsFor } from "../../coordinator/cli/permissions.mjs";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
/** Longest wait for anything; only a hang reaches it. */
const PATIENCE_MS = 180_000;

/** Small enough that a step takes milliseconds on the CPU engine, exact on the wire. */
export const TINY = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 16, n_inner: 24, block_size: 8, batch_size: 2 },
  ...{ gradient_accumulation_steps: 2, warmup_iters: 1, eval_interval: 3, eval_iters: 1, sample_chars: 0 },
  ...{ snapshot_interval: 3, checkpoint_interval: 3, codec_forward: "raw32", codec_backward: "raw32" },
};

/** `--key=value` for each configuration key. */
export function flagsOf(config: Record<string, unknown>): string[] {
  return Object.entries(config).map(([key, value]) => `--${key}=${value}`);
}

export type JsonLine = Record<string, unknown>;

export interface Cli extends AsyncDisposable {
  readonly out: string[];
  readonly err: string[];
  /** Lines of stdout as JSON; throws at one that is not. */
  json(): JsonLine[];
  /** The first JSON line for which `holds`, now or later. */
  line(what: string, holds: (line: JsonLine) => boolean): Promise<JsonLine>;
  /** Resolves to the exit code once both outputs have ended. */
  ended(): Promise<number>;
  interrupt(): void;
  signal(name: Deno.Signal): void;
}

/** Starts `shoal <verb> <args>`. */
export function shoal(verb: string, args: string[]): Cli {
  const around = { root: ROOT, cwd: ROOT, tmp: tempFolder(), deno: Deno.execPath(), chromium: null };
  const script = ["--quiet", "--no-prompt", "--no-check", ...permissionsFor(verb, args, around)];
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", ...script, "coordinator/cli/main.ts", verb, ...args],
    ...{ cwd: ROOT, stdin: "null", stdout: "piped", stderr: "piped" },
  }).spawn();
  const out: string[] = [];
  const err: string[] = [];
  const reading = Promise.all([collect(child.stdout, out), collect(child.stderr, err)]);
  let over = false;
  void child.status.then(() => over = true);
  const json = () => out.filter((line) => line !== "").map((line) => JSON.parse(line) as JsonLine);
  return {
    ...{ out, err, json },
    async line(what, holds) {
      return await until(`${verb}: ${what}`, () => {
        const found = json().find(holds);
        if (found === undefined && over) throw new Error(`${verb} ended before ${what}:\n${said(out, err)}`);
        return found;
      }, () => said(out, err));
    },
    async ended() {
      await until(`${verb} to end`, () => over || undefined, () => said(out, err));
      await reading;
      return (await child.status).code;
    },
    interrupt: () => child.kill("SIGINT"),
    signal: (name) => child.kill(name),
    async [Symbol.asyncDispose]() {
      if (!over) child.kill("SIGKILL");
      await child.status;
      await reading;
    },
  };
}

function tempFolder(): string {
  return Deno.env.get("TMPDIR") ?? "/tmp";
}

async function collect(stream: ReadableStream<Uint8Array<ArrayBuffer>>, lines: string[]): Promise<void> {
  let rest = "";
  for await (const text of stream.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split("\n");
    rest = parts.pop() ?? "";
    lines.push(...parts);
  }
  if (rest !== "") lines.push(rest);
}

function said(out: string[], err: string[]): string {
  return [...out.slice(-12), ...err.slice(-12)].join("\n");
}

async function until<T>(what: string, find: () => T | undefined, context: () => string): Promise<T> {
  const deadline = performance.now() + PATIENCE_MS;
  while (true) {
    const found = find();
    if (found !== undefined) return found;
    if (performance.now() > deadline) throw new Error(`waited too long for ${what}:\n${context()}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-cli-" });
  try {
    await body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

/** A coordinator that has printed its links. */
export async function serving(
  verb: "coordinator" | "resume",
  args: string[],
): Promise<{ cli: Cli; join: string; admin: string }> {
  const cli = shoal(verb, ["--json", ...args]);
  const { join, admin } = await cli.line("the join link", (line) => line.event === "listening");
  return { cli, join: String(join), admin: String(admin) };
}

export function cpuPeer(join: string): Cli {
  return shoal("peer", ["--join", join, "--engine", "cpu", "--json"]);
}
