// Reckons what a configuration would take, beside the thread that serves runs: a plan for many peers takes longer than a
// coordinator may be silent. One question, one answer.
import { estimate, type EstimateRequest } from "../plan/estimate.ts";
import { messageOf } from "../../peer/wire/errors.ts";

// Deno types a worker's global like a window's; the worker's own has postMessage(value) alone.
const scope = self as unknown as {
  onmessage: ((event: MessageEvent<EstimateRequest>) => void) | null;
  postMessage(value: unknown): void;
};

scope.onmessage = ({ data }) => {
  try {
    scope.postMessage({ ok: true, value: estimate(data) });
  } catch (error) {
    scope.postMessage({ ok: false, reason: messageOf(error) });
  }
};
