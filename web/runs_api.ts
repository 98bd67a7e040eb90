// The interface of a coordinator with several runs as its page uses it. Not a cache and not a poller; failures are ShoalErrors.
import type { RunConfig } from "../peer/wire/run.ts";
import type {
  EstimateAnswer,
  EstimateWish,
  HubRun,
  HubRuns,
  RunForm,
  RunText,
  RunWish,
} from "../peer/wire/hub.ts";
import { ask } from "./api.ts";

/** An estimate may wait for another one, and a run is opened before it is answered for. */
const WORK_TIMEOUT_MS = 60_000;

export class RunsApi {
  readonly #token: string;

  /** @param token the organizer's; empty: the public list alone */
  constructor(token: string) {
    this.#token = token;
  }

  async runs(): Promise<HubRuns> {
    return await (await ask("/api/hub/runs", this.#token)).json() as HubRuns;
  }

  async form(): Promise<RunForm> {
    return await (await ask("/api/hub/form", this.#token)).json() as RunForm;
  }

  async config(id: string): Promise<RunConfig> {
    return await (await ask(`${pathOf(id)}/config`, this.#token)).json() as RunConfig;
  }

  /** Its text as another run names it; what was a file is taken over, which may take a while. */
  async text(id: string): Promise<RunText> {
    return await (await this.#send("POST", `${pathOf(id)}/text`, {})).json() as RunText;
  }

  async estimate(wish: EstimateWish): Promise<EstimateAnswer> {
    return await (await this.#send("POST", "/api/hub/estimate", wish)).json() as EstimateAnswer;
  }

  async create(wish: RunWish): Promise<{ id: string; runs: HubRun[] }> {
    return await (await this.#send("POST", "/api/hub/runs", wish)).json() as { id: string; runs: HubRun[] };
  }

  archive(id: string): Promise<HubRun[]> {
    return this.#order("POST", `${pathOf(id)}/archive`, {});
  }

  open(id: string): Promise<HubRun[]> {
    return this.#order("POST", `${pathOf(id)}/open`, {});
  }

  list(id: string, listed: boolean): Promise<HubRun[]> {
    return this.#order("POST", `${pathOf(id)}/list`, { listed });
  }

  /** @param name of the run, as a proof that this one is meant */
  remove(id: string, name: string): Promise<HubRun[]> {
    return this.#order("DELETE", pathOf(id), { name });
  }

  async #order(method: string, path: string, body: unknown): Promise<HubRun[]> {
    return (await (await this.#send(method, path, body)).json() as HubRuns).runs;
  }

  #send(method: string, path: string, body: unknown): Promise<Response> {
    return ask(path, this.#token, {
      ...{ method, body: JSON.stringify(body), headers: { "content-type": "application/json" } },
      signal: AbortSignal.timeout(WORK_TIMEOUT_MS),
    });
  }
}

function pathOf(id: string): string {
  return `/api/hub/runs/${encodeURIComponent(id)}`;
}
