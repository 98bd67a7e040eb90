// How far a text is cut into tokens, on a terminal as one line that is drawn anew, elsewhere as a line now and then. It never decides
// anything about the text.
import type { PrepareProgress } from "../corpora/prepare.ts";
import { compact, progressBar } from "./report.ts";

/** A line is redrawn at most so often, and a text that is done sooner shows none. */
const REDRAW_MS = 200;
const PLAIN_MS = 10_000;

export interface ProgressOutput {
  /** Where people read; `tty`: a line can be drawn anew. */
  write(text: string): void;
  tty: boolean;
  now(): number;
}

/** Shows what it is told; `end` leaves an empty line behind. */
export function corpusProgress({ write, tty, now }: ProgressOutput) {
  let last = now(), drawn = false;
  return {
    show({ bytes, of, tokens }: PrepareProgress): void {
      if (now() - last < (tty ? REDRAW_MS : PLAIN_MS)) return;
      last = now();
      const text = `cutting the text into tokens ${progressBar(bytes, of)} ${compact(tokens)} tokens`;
      write(tty ? `\r\x1b[K${text}` : `${text}\n`);
      drawn = tty;
    },
    end(): void {
      if (drawn) write("\r\x1b[K");
      drawn = false;
    },
  };
}

/** On this process's stderr. */
export function processCorpusProgress(quiet: boolean) {
  const encoder = new TextEncoder();
  return corpusProgress({
    write: (text) => quiet ? undefined : void Deno.stderr.writeSync(encoder.encode(text)),
    tty: Deno.stderr.isTerminal(),
    now: () => performance.now(),
  });
}
