// How often the pages ask and draw: a poller that backs off, and a gate that limits updates. No page, no fetch.
// Time comes in as functions, so tests run without a clock.

/** Between polls while the coordinator answers. */
export const POLL_MS = 1000;
/** A page left open overnight must not hammer a stopped coordinator, nor need a minute to notice its return. */
export const POLL_MS_MAX = 15_000;
/** At most four updates a second reach the screen. */
export const DRAW_MS_MIN = 250;

/** Wait before the next poll after `failures` failures in a row: 1, 2, 4, 8, then 15 s. */
export function pollDelayMs(failures: number): number {
  return Math.min(POLL_MS_MAX, POLL_MS * 2 ** Math.min(failures, 10));
}

export interface Timers {
  now(): number;
  after(ms: number, run: () => void): void;
}

const browserTimers: Timers = {
  now: () => performance.now(),
  after: (ms, run) => void setTimeout(run, ms),
};

/** Passes values on at most once per `DRAW_MS_MIN`: the first at once, then always the newest. */
export function latestOnly<T>(apply: (value: T) => void, timers: Timers = browserTimers): (value: T) => void {
  let lastMs = -Infinity;
  let waiting: { value: T } | null = null;
  function flush(): void {
    if (!waiting) return;
    const { value } = waiting;
    waiting = null;
    lastMs = timers.now();
    apply(value);
  }
  return function offer(value) {
    const scheduled = waiting !== null;
    waiting = { value };
    if (scheduled) return;
    const waitMs = lastMs + DRAW_MS_MIN - timers.now();
    if (waitMs <= 0) flush();
    else timers.after(waitMs, flush);
  };
}

/** Asks again and again until `ask` answers "stop"; failures stretch the wait. Never two at a time. */
export async function poll(ask: () => Promise<"ok" | "failed" | "stop">, wait = sleep): Promise<void> {
  let failures = 0;
  while (true) {
    const outcome = await ask();
    if (outcome === "stop") return;
    failures = outcome === "ok" ? 0 : failures + 1;
    await wait(pollDelayMs(failures));
  }
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
