// Asks a worker what configurations would take, one after the other; the last answers are remembered. Knows nothing of forms. What
// must stay true: neither many questions nor a long one hold up the runs of this process.
import type { EstimateRequest } from "../plan/estimate.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { Estimate } from "../../peer/wire/hub.ts";

/** Questions that wait at a time; people type into a form or two. */
const WAITING_MAX = 8;
/** A plan takes a second or two; a configuration at every bound takes seven. */
const ANSWER_MS = 30_000;

type Answer = { ok: true; value: Estimate } | { ok: false; reason: string };

export class Estimator {
  #worker: Worker | null = null;
  #last: Promise<unknown> = Promise.resolve();
  #waiting = 0;
  #remembered: { question: string; value: Estimate } | null = null;

  /** @throws {ShoalError} usage if too many ask or the answer takes too long */
  async ask(request: EstimateRequest): Promise<Estimate> {
    const question = JSON.stringify(request);
    if (this.#remembered?.question === question) return this.#remembered.value;
    if (this.#waiting >= WAITING_MAX) {
      throw new ShoalError("usage", "too many estimates are asked for at a time; try again in a few seconds");
    }
    this.#waiting++;
    const turn = this.#last.then(() => this.#answer(request)).finally(() => this.#waiting--);
    this.#last = turn.catch(() => {});
    const value = await turn;
    this.#remembered = { question, value };
    return value;
  }

  close(): void {
    this.#worker?.terminate();
    this.#worker = null;
  }

  async #answer(request: EstimateRequest): Promise<Estimate> {
    const worker = this.#worker ??= new Worker(new URL("./estimate_worker.ts", import.meta.url), {
      type: "module",
    });
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    const timer = setTimeout(() => reject(new Error("it took too long")), ANSWER_MS);
    worker.onmessage = ({ data }: MessageEvent<Answer>) => resolve(data);
    worker.onerror = (event) => {
      event.preventDefault();
      reject(new Error(event.message));
    };
    worker.postMessage(request);
    try {
      const answer = await promise;
      if (answer.ok) return answer.value;
      throw new ShoalError("bad-config", answer.reason);
    } catch (error) {
      if (error instanceof ShoalError) throw error;
      // What it is still busy with would hold up the next question.
      this.close();
      throw new ShoalError("usage", `there is no estimate: ${(error as Error).message}`, { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }
}
