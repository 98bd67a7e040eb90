// How long a page's own thread was busy at a stretch, from the browser's trace. Counts processor time, not the clock: what other
// processes of a loaded machine took from the thread is not the page's doing. It judges nothing.
import type { Page } from "playwright";

/** The parts of Chrome's trace format that are read here. */
interface TraceEvent {
  name: string;
  pid: number;
  tid: number;
  /** Microseconds of the thread's processor time. */
  tdur?: number;
  args?: { name?: string };
}

export interface MainThread {
  tasks: number;
  /** Milliseconds of processor time of the longest task. */
  longestMs: number;
}

const MAIN_THREAD = "CrRendererMain";
const TASK = "ThreadControllerImpl::RunTask";

/** Traces the page's renderer while `during` runs. */
export async function mainThreadOf(page: Page, during: () => Promise<void>): Promise<MainThread> {
  const browser = page.context().browser();
  if (browser === null) throw new Error("the page has no browser that could trace it");
  await browser.startTracing(page, { categories: ["toplevel", "__metadata"] });
  await during();
  const trace = new TextDecoder().decode(await browser.stopTracing());
  return longestTask((JSON.parse(trace) as { traceEvents: TraceEvent[] }).traceEvents);
}

function longestTask(events: readonly TraceEvent[]): MainThread {
  const threadOf = ({ pid, tid }: TraceEvent) => `${pid}/${tid}`;
  const main = new Set(
    events.filter(({ name, args }) => name === "thread_name" && args?.name === MAIN_THREAD).map(threadOf),
  );
  const tasks = events.filter((event) => event.name === TASK && main.has(threadOf(event)));
  const longest = Math.max(0, ...tasks.map(({ tdur }) => tdur ?? 0));
  return { tasks: tasks.length, longestMs: longest / 1000 };
}
