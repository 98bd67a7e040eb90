// The coordinator's HTTP app over a real shell, without a server: requests go straight into it. For tests of coordinator/http.
// The run is real as well: it is fed by hand, and its folder is removed in the end.
import assert from "node:assert/strict";
import { join } from "node:path";
import { createApp } from "../../coordinator/http/app.ts";
import { Door } from "../../coordinator/http/door.ts";
import { Sockets } from "../../coordinator/http/sockets.ts";
import type { LiveTexts } from "../../coordinator/http/live_texts.ts";
import type { TextService } from "../../coordinator/http/text_service.ts";
import { Shell } from "../../coordinator/shell.ts";
import { EventLog } from "../../coordinator/store/event_log.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";

export const JOIN = "join-token-of-the-test";
export const ADMIN = "admin-token-of-the-test";
export const LINK = "http://127.0.0.1:1/#secret-link";

const CONFIG = readConfig({
  ...{
    n_layer: 2,
    n_head: 2,
    n_kv_head: 1,
    n_embd: 8,
    n_inner: 8,
    block_size: 4,
    min_peers: 2,
    max_iters: 9,
  },
  ...{ checkpoint_interval: 1, warmup_iters: 0, n_stage: 2, shadows: false, gradient_accumulation_steps: 1 },
});
export const SPEC = specOf(CONFIG, 3);

export interface Site extends AsyncDisposable {
  shell: Shell;
  sockets: Sockets;
  door: Door;
  /** Requests `path` with a token, or without any. */
  ask(path: string, options?: RequestInit & { token?: string; peer?: string }): Promise<Response>;
}

export interface SiteParts {
  texts?: TextService;
  publicText?: boolean;
  live?(shell: Shell): LiveTexts;
}

export async function openSite({ live, ...more }: SiteParts = {}): Promise<Site> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-app-" });
  const webRoot = join(folder, "dist");
  for (const [name, text] of Object.entries(FILES)) await write(join(folder, name), text);
  const corpus = { vocab: ["a", "b", "c"], tokens: Uint8Array.of(0, 1, 2, 1), bytesPerToken: 1 as const };
  const shell = new Shell({
    ...{ config: CONFIG, spec: SPEC, log: new EventLog(folder), outDir: folder },
    corpus: { ...corpus, hash: "00", decode: () => "" },
    onEvent: () => {},
    sample: () => Promise.resolve(""),
  });
  const door = new Door({ runDir: folder, joinToken: JOIN, now: () => shell.now() });
  const sockets = new Sockets(shell, door);
  const about = { runName: "the run", operator: "an operator", webRoot, outDir: folder };
  const app = createApp({
    ...about,
    ...more,
    ...(live === undefined ? {} : { live: live(shell) }),
    shell,
    sockets,
    door,
    adminToken: ADMIN,
    joinLink: (token) => token === undefined ? LINK : `http://127.0.0.1:1/#${token}`,
  });
  return {
    ...{ shell, sockets, door },
    ask(path, { token, peer, ...init } = {}) {
      const headers = new Headers(init.headers);
      if (token !== undefined) headers.set("authorization", `Bearer ${token}`);
      if (peer !== undefined) {
        headers.set("x-shoal-peer", peer);
        headers.set("x-shoal-ticket", sockets.tickets.get(peer) ?? "none");
      }
      if (typeof init.body === "string") headers.set("content-length", String(init.body.length));
      return Promise.resolve(app.fetch(new Request(`http://127.0.0.1${path}`, { ...init, headers })));
    },
    async [Symbol.asyncDispose]() {
      await shell.close("the test is over");
      await Deno.remove(folder, { recursive: true });
    },
  };
}

const FILES = {
  "dist/index.html": "<title>join</title>",
  "dist/admin.html": "<title>admin</title>",
  "dist/assets/app-1a2b.js": "0",
  "secret.txt": "outside",
  "dist-backup/secret.txt": "beside",
};

export async function write(path: string, text: string): Promise<void> {
  await Deno.mkdir(join(path, ".."), { recursive: true });
  await Deno.writeTextFile(path, text);
}

export async function assertProblem(response: Response, status: number, code: string): Promise<void> {
  assert.equal(response.status, status);
  const body = await response.json();
  assert.deepEqual(Object.keys(body).sort(), ["code", "message"]);
  assert.equal(body.code, code);
  assert.ok(body.message.length > 10, "no remedy");
}

/** A measured peer with a ticket, as the socket would have made it. */
export function admit(site: Site, id: string): void {
  site.sockets.tickets.set(id, `ticket of ${id}`);
  const about = { runtime: "deno" as const, adapter: "none", engine: "cpu", name: id };
  site.shell.feed({ type: "join", peer: { id, ...about } });
  const message = { type: "measured" as const, blockMs: 10, memoryBytes: 1e9 };
  site.shell.feed({ type: "message", peer: id, message });
}
