// A worker that does one preparing job, so that whoever serves runs never waits for it, and a tokenizer that hangs can be ended. Nothing
// is decided here.
import type { JobReport, PrepareJob } from "./jobs.ts";
import { doJob } from "./work.ts";

// Deno types a worker's global like a window's; the worker's own has postMessage(value) alone.
const scope = self as unknown as {
  onmessage: ((event: MessageEvent<PrepareJob>) => void) | null;
  postMessage(value: JobReport): void;
};

scope.onmessage = ({ data }) => {
  void doJob(data, (report) => scope.postMessage(report));
};
