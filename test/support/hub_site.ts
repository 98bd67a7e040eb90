// A coordinator of several runs for tests: real folders, a real server, runs small enough to train in milliseconds, and a peer in this
// process. No assertions but that what a test relies on has worked.
import assert from "node:assert/strict";
import { join } from "node:path";
import { type HubServer, startHub } from "../../coordinator/hub/start.ts";
import { readJoinLink } from "../../peer/deno.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import { createLinkHost } from "../../peer/net/host.ts";
import { Peer } from "../../peer/peer.ts";
import type { HubRun, HubRuns } from "../../peer/wire/hub.ts";

export const SMALL = {
  ...{ n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1 },
  ...{ gradient_accumulation_steps: 2, max_iters: 1000, warmup_iters: 0, eval_interval: 1000, eval_iters: 1 },
  ...{ checkpoint_interval: 1000, sample_chars: 0 },
};

export interface HubSite extends AsyncDisposable {
  server: HubServer;
  folder: string;
  origin: string;
  notes: string[];
  ask(path: string, body?: unknown, more?: { method?: string; token?: string | null }): Promise<Response>;
  rows(): Promise<HubRun[]>;
}

export async function openHub(
  folder: string,
  more: Partial<Parameters<typeof startHub>[0]> = {},
): Promise<HubSite> {
  await Deno.mkdir(join(folder, "web"), { recursive: true });
  await Deno.writeTextFile(join(folder, "web", "runs.html"), "<title>runs</title>");
  await Deno.writeTextFile(join(folder, "web", "index.html"), "<title>join</title>");
  const notes: string[] = [];
  const server = await startHub({
    ...{ runsDir: join(folder, "runs"), host: "127.0.0.1", port: 0, operator: "the test" },
    ...{ webRoot: join(folder, "web"), onEvent: () => {} },
    onNote: (id, text) => notes.push(`${id}: ${text}`),
    ...more,
  });
  const { origin, hash } = new URL(server.adminLink);
  const ask: HubSite["ask"] = (path, body, { method, token = hash.slice(1) } = {}) =>
    fetch(origin + path, {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers: token === null ? {} : { authorization: `Bearer ${token}` },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  return {
    ...{ server, folder, origin, notes, ask },
    rows: async () => (await (await ask("/api/hub/runs")).json() as HubRuns).runs,
    [Symbol.asyncDispose]: () => server.stop("the test is over"),
  };
}

export async function withHub(test: (site: HubSite) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-hub-" });
  try {
    await using site = await openHub(folder);
    await test(site);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

export async function make(site: HubSite, name: string, more: Record<string, unknown> = {}): Promise<string> {
  const response = await site.ask("/api/hub/runs", { name, config: SMALL, ...more });
  const body = await response.json();
  assert.equal(response.status, 201, JSON.stringify(body));
  return body.id;
}

export async function refused(response: Response, status: number, wanted: RegExp): Promise<void> {
  const body = await response.json();
  assert.equal(response.status, status, JSON.stringify(body));
  assert.match(`${body.code}: ${body.message}`, wanted);
}

export function lend(link: string): Peer {
  return new Peer({
    ...{ ...readJoinLink(link), runtime: "deno", adapter: "none", engine: "cpu", memoryBytes: 1e9 },
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    createHost: (selfId, relay) =>
      createLinkHost({ selfId, relay, createLink: () => assert.fail("one peer opened a link") }),
    onChange: () => {},
  });
}
