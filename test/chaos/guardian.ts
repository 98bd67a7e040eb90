// Cleans up after a chaos run, also if the run itself is killed: a small shell process in a session of its own keeps a list
// of what was made and undoes it when its input ends. Not a supervisor: it starts nothing and watches nothing.
// Every process is checked for the run's own mark before it is ended, so that a recycled process id harms nobody.

/** Environment variable that marks every process of one run. */
export const MARK = "SHOAL_CHAOS_RUN";

/** Reads `kind value` lines; at the end of its input it ends processes, then removes namespaces, then folders. */
const SCRIPT = `
trap '' INT TERM HUP
while read -r kind value; do
  case "$kind" in
    pid) pids="$pids $value" ;;
    netns) spaces="$spaces $value" ;;
    folder) folders="$folders $value" ;;
  esac
done
for pid in $pids; do
  if grep -qs "${MARK}=$1" "/proc/$pid/environ"; then kill -9 "$pid"; fi
done
for space in $spaces; do
  for pid in $(ip netns pids "$space" 2>/dev/null); do kill -9 "$pid"; done
  ip netns del "$space" 2>/dev/null
done
for folder in $folders; do rm -rf "$folder" || { sleep 1; rm -rf "$folder"; }; done
exit 0
`;

export type Trace = { kind: "pid"; value: number } | { kind: "netns" | "folder"; value: string };

export class Guardian implements AsyncDisposable {
  /** Belongs in the environment of every process that is to be ended with the run. */
  readonly environment: Readonly<Record<string, string>>;
  readonly #shell: Deno.ChildProcess;
  readonly #input: WritableStreamDefaultWriter<Uint8Array>;
  #over: Promise<void> | null = null;

  constructor() {
    const mark = crypto.randomUUID();
    this.environment = { [MARK]: mark };
    this.#shell = new Deno.Command("sh", {
      args: ["-c", SCRIPT, "shoal-guardian", mark],
      detached: true,
      stdin: "piped",
      stdout: "null",
      stderr: "inherit",
    }).spawn();
    this.#input = this.#shell.stdin.getWriter();
  }

  /** Resolves when the guardian's pipe has it, from where a death of this process cannot take it back. */
  async note({ kind, value }: Trace): Promise<void> {
    await this.#input.write(new TextEncoder().encode(`${kind} ${value}\n`));
  }

  /** A folder for the run, gone at its end. */
  async folder(prefix: string): Promise<string> {
    const path = await Deno.makeTempDir({ prefix });
    await this.note({ kind: "folder", value: path });
    return path;
  }

  /** Cleans up now; a second call waits for the first. */
  [Symbol.asyncDispose](): Promise<void> {
    this.#over ??= this.#end();
    return this.#over;
  }

  async #end(): Promise<void> {
    await this.#input.close();
    await this.#shell.status;
  }
}
