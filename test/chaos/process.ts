// One child process that prints JSON lines: the command line of Shoal, or a helper of a chaos run. Lines are pushed to whoever
// waits, because a long run prints many. It says nothing about what lines mean.
import { fileURLToPath } from "node:url";
import { permissionsFor } from "../../coordinator/cli/permissions.mjs";
import type { Guardian } from "./guardian.ts";

export const ROOT = fileURLToPath(new URL("../../", import.meta.url));
/** Longest wait for anything; only a hang reaches it. */
export const PATIENCE_MS = 120_000;
/** Lines of stderr and stdout kept to explain a failure. */
const LAST_LINES = 5;

export type JsonLine = Record<string, unknown>;

export interface ProcOptions {
  name: string;
  guardian: Guardian;
  command: string;
  args: string[];
  /** Network namespace to run in. */
  space?: string;
  onLine?: (line: JsonLine) => void;
}

export class Proc implements AsyncDisposable {
  readonly name: string;
  readonly pid: number;
  readonly lines: JsonLine[] = [];
  /** How it ended, null while it runs. */
  exit: Deno.CommandStatus | null = null;
  readonly ended: Promise<Deno.CommandStatus>;
  readonly #child: Deno.ChildProcess;
  readonly #last: string[] = [];
  readonly #waiting = new Set<() => void>();

  constructor({ name, guardian, command, args, space, onLine }: ProcOptions) {
    this.name = name;
    const inside = space === undefined
      ? { command, args }
      : { command: "ip", args: ["netns", "exec", space, command, ...args] };
    this.#child = new Deno.Command(inside.command, {
      args: inside.args,
      cwd: ROOT,
      env: { ...driverEnvironment(), ...guardian.environment },
      // In a session of its own: Ctrl-C is for the run's own process, which ends the others in its order.
      detached: true,
      ...{ stdin: "piped", stdout: "piped", stderr: "piped" },
    }).spawn();
    this.pid = this.#child.pid;
    void guardian.note({ kind: "pid", value: this.pid });
    const heard = Promise.all([
      this.#hear(this.#child.stdout, (text) => this.#take(text, onLine)),
      this.#hear(this.#child.stderr, () => {}),
    ]);
    this.ended = Promise.all([this.#child.status, heard]).then(([status]) => {
      this.exit = status;
      this.#wake();
      return status;
    });
  }

  /**
   * The first line at or after `from` for which `holds`, now or later.
   * @throws {Error} if the process ends first or the patience does, with what it had said.
   */
  async line(what: string, holds: (line: JsonLine) => boolean, from = 0): Promise<JsonLine> {
    let next = from;
    let found: JsonLine | undefined;
    const look = () => {
      while (found === undefined && next < this.lines.length) {
        const line = this.lines[next++]!;
        if (holds(line)) found = line;
      }
      if (found === undefined && this.exit !== null) throw this.#failure(`ended before ${what}`);
      return found !== undefined;
    };
    await this.#until(look, what);
    return found!;
  }

  /** Sends a signal; a process that has ended already takes none. */
  signal(name: Deno.Signal): void {
    if (this.exit !== null) return;
    try {
      this.#child.kill(name);
    } catch {
      // It has ended between the two lines.
    }
  }

  /** Writes a line to its standard input. */
  async tell(line: unknown): Promise<void> {
    const writer = this.#child.stdin.getWriter();
    try {
      await writer.write(new TextEncoder().encode(`${JSON.stringify(line)}\n`));
    } finally {
      writer.releaseLock();
    }
  }

  said(): string {
    return this.#last.join("\n");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // A stopped process takes only this signal.
    this.signal("SIGKILL");
    await this.ended;
    // A pipe whose reader is gone refuses to close, which changes nothing.
    await this.#child.stdin.close().catch(() => {});
  }

  #failure(problem: string): Error {
    const how = this.exit === null ? "" : ` (${this.exit.signal ?? `exit code ${this.exit.code}`})`;
    return new Error(`${this.name} ${problem}${how}; it said:\n${this.said()}`);
  }

  async #until(holds: () => boolean, what: string): Promise<void> {
    let wake: () => void = () => {};
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      wake();
    }, PATIENCE_MS);
    const call = () => wake();
    this.#waiting.add(call);
    try {
      while (!holds()) {
        if (late) throw this.#failure(`did not come to ${what} in ${PATIENCE_MS / 1000} s`);
        await new Promise<void>((resolve) => wake = resolve);
      }
    } finally {
      clearTimeout(timer);
      this.#waiting.delete(call);
    }
  }

  #wake(): void {
    for (const wake of this.#waiting) wake();
  }

  #take(text: string, onLine: ProcOptions["onLine"]): void {
    if (!text.startsWith("{")) return;
    const line = JSON.parse(text) as JsonLine;
    this.lines.push(line);
    onLine?.(line);
    this.#wake();
  }

  async #hear(stream: ReadableStream<Uint8Array<ArrayBuffer>>, take: (line: string) => void): Promise<void> {
    let rest = "";
    for await (const text of stream.pipeThrough(new TextDecoderStream())) {
      const parts = (rest + text).split("\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        this.#last.push(part);
        if (this.#last.length > LAST_LINES) this.#last.shift();
        take(part);
      }
    }
  }
}

/** As shoal.mjs has it: without a backend named, a missing Vulkan driver silently becomes a slow GL adapter. */
function driverEnvironment(): Record<string, string> {
  const linux = Deno.build.os === "linux" && Deno.env.get("DENO_WEBGPU_BACKEND") === undefined;
  return {
    XDG_RUNTIME_DIR: Deno.env.get("XDG_RUNTIME_DIR") ?? temporaryFolder(),
    ...(linux ? { DENO_WEBGPU_BACKEND: "vulkan" } : {}),
  };
}

function temporaryFolder(): string {
  return Deno.env.get("TMPDIR") ?? "/tmp";
}

/** Starts `shoal <verb> <args> --json` with exactly the permissions that shoal.mjs would give it. */
export function shoalProc(
  verb: string,
  args: string[],
  options: Omit<ProcOptions, "command" | "args">,
): Proc {
  const around = {
    root: ROOT,
    cwd: ROOT,
    tmp: temporaryFolder(),
    deno: Deno.execPath(),
    chromium: null,
  };
  const all = ["--json", ...args];
  const flags = ["--quiet", "--no-prompt", "--no-check", ...permissionsFor(verb, all, around)];
  return new Proc({
    ...options,
    command: Deno.execPath(),
    args: ["run", ...flags, "coordinator/cli/main.ts", verb, ...all],
  });
}
