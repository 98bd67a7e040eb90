// A virtual screen for programs that need a real window, and waiting for a program to be ready. No browser here.
import { ShoalError } from "../../peer/wire/errors.ts";

/** Longest wait for a program, a page or an answer. */
export const PATIENCE_MS = 60_000;
const POLL_MS = 50;
const SCREEN = "1280x900x24";

/** What `find` finds, as soon as it neither fails nor says null. @throws {ShoalError} internal if that takes too long */
export async function until<T>(what: string, find: () => Promise<T | null>): Promise<T> {
  const deadline = performance.now() + PATIENCE_MS;
  while (true) {
    const found = await find().catch(() => null);
    if (found !== null) return found;
    if (performance.now() > deadline) throw new ShoalError("internal", `waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Starts Xvfb, which picks a free display itself. @throws {ShoalError} usage where it is not installed */
export async function startScreen(): Promise<{ process: Deno.ChildProcess; display: string }> {
  const command = new Deno.Command("Xvfb", {
    args: ["-displayfd", "1", "-screen", "0", SCREEN, "-nolisten", "tcp"],
    ...{ stdout: "piped", stderr: "null" } as const,
  });
  let process: Deno.ChildProcess;
  try {
    process = command.spawn();
  } catch {
    throw new ShoalError("usage", "Xvfb is not installed; a real window needs it: apt-get install xvfb");
  }
  const reader = process.stdout.getReader();
  const { value } = await reader.read();
  reader.releaseLock();
  return { process, display: `:${new TextDecoder().decode(value).trim()}` };
}
