// The HTTP side: who may see and do what, that every error is {code, message}, that only built pages are served, and that a
// state file is taken only when it is asked for, from a holder, in exact shape.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { PROTOCOL_VERSION } from "../../peer/wire/control.ts";
import { Shell } from "../shell.ts";
import { EventLog } from "../store/event_log.ts";
import { createApp } from "./app.ts";
import { Sockets } from "./sockets.ts";

const JOIN = "join-token-of-the-test";
const ADMIN = "admin-token-of-the-test";
const LINK = "http://127.0.0.1:1/#secret-link";

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
  ...{ snapshot_interval: 1, warmup_iters: 0, n_stage: 2, shadows: false, gradient_accumulation_steps: 1 },
});
const SPEC = specOf(CONFIG, 3);

interface Site extends AsyncDisposable {
  shell: Shell;
  sockets: Sockets;
  /** Requests `path` with a token, or without any. */
  ask(path: string, options?: RequestInit & { token?: string; peer?: string }): Promise<Response>;
}

async function openSite(): Promise<Site> {
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
  const sockets = new Sockets(shell, JOIN);
  const about = { runName: "the run", operator: "an operator", webRoot, outDir: folder };
  const app = createApp({
    ...about,
    shell,
    sockets,
    joinToken: JOIN,
    adminToken: ADMIN,
    joinLink: () => LINK,
  });
  return {
    ...{ shell, sockets },
    ask(path, { token, peer, ...init } = {}) {
      const headers = new Headers(init.headers);
      if (token !== undefined) headers.set("authorization", `Bearer ${token}`);
      if (peer !== undefined) {
        headers.set("x-shoal-peer", peer);
        headers.set("x-shoal-ticket", sockets.tickets.get(peer) ?? "none");
      }
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

async function write(path: string, text: string): Promise<void> {
  await Deno.mkdir(join(path, ".."), { recursive: true });
  await Deno.writeTextFile(path, text);
}

async function assertProblem(response: Response, status: number, code: string): Promise<void> {
  assert.equal(response.status, status);
  const body = await response.json();
  assert.deepEqual(Object.keys(body).sort(), ["code", "message"]);
  assert.equal(body.code, code);
  assert.ok(body.message.length > 10, "no remedy");
}

type Method = "GET" | "POST" | "PUT";
const FOR_ANY_TOKEN: [Method, string][] = [
  ["GET", "/api/invite"],
  ["GET", "/api/status"],
  ["GET", "/api/corpus"],
  ["GET", "/metrics"],
];
const FOR_ADMIN: [Method, string][] = [
  ["POST", "/api/control"],
  ["POST", "/api/evict"],
  ["GET", "/api/checkpoints/step-000000003/config.json"],
];
const FOR_PEERS: [Method, string][] = [["GET", "/api/state/1/0"], ["PUT", "/api/state/1/0"]];

Deno.test("http: without a token or with a wrong one every API path is 401, as {code, message}", async () => {
  await using site = await openSite();
  for (const [method, path] of [...FOR_ANY_TOKEN, ...FOR_ADMIN, ...FOR_PEERS]) {
    for (const token of [undefined, "", "wrong", JOIN.slice(1), `${JOIN}x`, `${ADMIN} `.repeat(2)]) {
      const response = await site.ask(path, { method, ...(token === undefined ? {} : { token }) });
      await assertProblem(response, 401, "bad-token");
    }
  }
});

Deno.test("http: the join token reads, and steers nothing", async () => {
  await using site = await openSite();
  for (const [method, path] of FOR_ANY_TOKEN) {
    const response = await site.ask(path, { method, token: JOIN });
    assert.equal(response.status, 200, path);
    await response.arrayBuffer();
  }
  for (const [method, path] of [...FOR_ADMIN, ...FOR_PEERS]) {
    await assertProblem(await site.ask(path, { method, token: JOIN }), 401, "bad-token");
  }
  const stop = { method: "POST", token: JOIN, body: JSON.stringify({ action: "stop" }) };
  await site.ask("/api/control", stop);
  assert.equal(site.shell.core.state.status, "waiting");
});

Deno.test("http: a volunteer sees the run, but neither log, links nor checkpoints", async () => {
  await using site = await openSite();
  join2(site, "a");
  site.shell.checkpoints.push({
    step: 1,
    name: "step-000000001",
    bytes: 1,
    valLoss: null,
    files: ["config.json"],
  });
  const seen = async (token: string) => await (await site.ask("/api/status", { token })).json();
  const [volunteer, organizer] = [await seen(JOIN), await seen(ADMIN)];
  assert.deepEqual([volunteer.events, volunteer.checkpoints, volunteer.joinLink], [[], [], null]);
  assert.ok(!JSON.stringify(volunteer).includes("secret-link"));
  assert.ok(organizer.events.length > 0);
  assert.equal(organizer.checkpoints.length, 1);
  assert.equal(organizer.joinLink, LINK);
  for (const body of [volunteer, organizer]) {
    const text = JSON.stringify(body);
    for (const secret of [JOIN, ADMIN, site.sockets.tickets.get("a")!]) assert.ok(!text.includes(secret));
  }
});

Deno.test("http: the invite says what a contributor decides by", async () => {
  await using site = await openSite();
  const invite = await (await site.ask("/api/invite", { token: JOIN })).json();
  assert.deepEqual([invite.runName, invite.operator, invite.state], ["the run", "an operator", "waiting"]);
  assert.equal(invite.version, PROTOCOL_VERSION);
  assert.ok(invite.memoryBytes > 0 && invite.bytesPerStep > 0 && invite.params > 0);
});

Deno.test("http: the corpus is the tokens, byte for byte", async () => {
  await using site = await openSite();
  const response = await site.ask("/api/corpus", { token: JOIN });
  assert.deepEqual(new Uint8Array(await response.arrayBuffer()), Uint8Array.of(0, 1, 2, 1));
});

Deno.test("http: the organizer pauses, stops and puts out; nonsense is named", async () => {
  await using site = await openSite();
  join2(site, "a");
  const post = (path: string, body: string) => site.ask(path, { method: "POST", token: ADMIN, body });
  for (const body of ["", "[]", "null", "{", '{"action":"explode"}', '{"action":{"toString":1}}']) {
    await assertProblem(await post("/api/control", body), 400, "usage");
  }
  for (const body of ['{"peer":"z"}', '{"peer":"constructor"}', '{"peer":"__proto__"}', '{"peer":7}', "{}"]) {
    await assertProblem(await post("/api/evict", body), 404, "usage");
  }
  await assertProblem(
    await post("/api/control", JSON.stringify({ action: "pause", fill: "x".repeat(5000) })),
    400,
    "usage",
  );
  assert.equal((await post("/api/control", '{"action":"pause"}')).status, 200);
  assert.equal(site.shell.core.state.paused, true);
  const status = await (await post("/api/evict", '{"peer":"a"}')).json();
  assert.deepEqual(status.peers, []);
  await post("/api/control", '{"action":"stop"}');
  assert.equal(site.shell.core.state.status, "finished");
});

Deno.test("http: only files of checkpoints that the run wrote are served", async () => {
  await using site = await openSite();
  const info = { step: 3, bytes: 1, valLoss: null };
  site.shell.checkpoints.push({ ...info, name: "step-000000003", files: ["config.json"] });
  await write(join(site.shell.options.outDir, "checkpoints/step-000000003/config.json"), "{}");
  const ask = (path: string) => site.ask(`/api/checkpoints/${path}`, { token: ADMIN });
  const found = await ask("step-000000003/config.json");
  assert.equal(found.headers.get("content-disposition"), 'attachment; filename="config.json"');
  assert.equal(await found.text(), "{}");
  for (
    const path of [
      "step-000000003/other",
      "other/config.json",
      "..%2f..%2f/secret.txt",
      "step-000000003/..%2F..%2F..%2Fsecret.txt",
    ]
  ) {
    await assertProblem(await ask(path), 404, "bad-checkpoint");
  }
});

Deno.test("http: pages carry a policy that allows this server alone", async () => {
  await using site = await openSite();
  for (const path of ["/", "/admin", "/index.html"]) {
    const response = await site.ask(path);
    assert.equal(response.status, 200);
    const policy = response.headers.get("content-security-policy") ?? "";
    assert.match(policy, /^default-src 'none'; script-src 'self'; /);
    assert.ok(!/unsafe|https?:|\*/.test(policy), policy);
    assert.match(policy, /frame-ancestors 'none'/);
    assert.equal(response.headers.get("x-content-type-options"), "nosniff");
    assert.equal(response.headers.get("referrer-policy"), "no-referrer");
    assert.equal(response.headers.get("cache-control"), "no-cache");
    await response.text();
  }
  const asset = await site.ask("/assets/app-1a2b.js");
  assert.match(asset.headers.get("cache-control") ?? "", /immutable/);
  assert.match(asset.headers.get("content-type") ?? "", /^text\/javascript/);
  await asset.text();
});

Deno.test("http: nothing outside the pages' folder is served, however it is written", async () => {
  await using site = await openSite();
  const paths = [
    ...[
      "/../secret.txt",
      "/%2e%2e/secret.txt",
      "/..%2fsecret.txt",
      "/%2e%2e%2fsecret.txt",
      "/assets/../../secret.txt",
    ],
    ...[
      "/../dist-backup/secret.txt",
      "/..%5csecret.txt",
      "/..\\secret.txt",
      "//secret.txt",
      "/%00/../secret.txt",
    ],
    ...["/.../secret.txt", "/events.sqlite", "/../events.sqlite", "/api/nothing", "/assets"],
  ];
  for (const path of paths) await assertProblem(await site.ask(path), 404, "usage");
  await assertProblem(await site.ask("/nowhere", { method: "POST" }), 404, "usage");
});

Deno.test("http: metrics are Prometheus text with help, type and value of each", async () => {
  await using site = await openSite();
  const response = await site.ask("/metrics", { token: ADMIN });
  const lines = (await response.text()).trimEnd().split("\n");
  assert.ok(lines.length >= 30 && lines.length % 3 === 0);
  for (let i = 0; i < lines.length; i += 3) {
    const [help, type, value] = lines.slice(i, i + 3);
    const name = /^# HELP (shoal_[a-z_]+) \S.*\.$/.exec(help!)?.[1];
    assert.ok(name !== undefined, help);
    assert.equal(type, `# TYPE ${name} ${name.endsWith("_total") ? "counter" : "gauge"}`);
    assert.match(value!, new RegExp(`^${name} (NaN|-?\\d+(\\.\\d+)?(e[+-]?\\d+)?)$`));
  }
});

/** A measured peer with a ticket, as the socket would have made it. */
function join2(site: Site, id: string): void {
  site.sockets.tickets.set(id, `ticket of ${id}`);
  const about = { runtime: "deno" as const, adapter: "none", engine: "cpu", name: id };
  site.shell.feed({ type: "join", peer: { id, ...about } });
  const message = { type: "measured" as const, blockMs: 10, memoryBytes: 1e9 };
  site.shell.feed({ type: "message", peer: id, message });
}

/** A run whose step 1 is committed and whose state is being asked for: stage 0 of a, stage 1 of b. */
function askForState(site: Site): void {
  for (const id of ["a", "b"]) join2(site, id);
  const { state } = site.shell.core;
  const say = (peer: string, message: Parameters<Shell["feed"]>[0] & { type: "message" }) =>
    site.shell.feed({ ...message, peer });
  for (const peer of ["a", "b"]) {
    say(peer, { type: "message", peer, message: { type: "ready", gen: state.gen } });
  }
  const sums = { gradNormSq: 1, lossSum: 1, lossCount: 1, saturated: 0, nonFinite: 0 };
  for (const [stage, peer] of ["a", "b"].entries()) {
    const total = { type: "logged" as const, gen: state.gen, step: 0, stage, hash: "t", ...sums };
    say(peer, { type: "message", peer, message: total });
  }
  assert.equal(state.pending?.step, 1);
}

interface Sending {
  peer: string;
  step?: number;
  stage?: number;
  gen?: number;
  bytes?: Uint8Array<ArrayBuffer>;
  hash?: string;
  headers?: Record<string, string>;
}

function stateOf(site: Site, stage: number, step = 1) {
  const state = { ...initialState(SPEC, site.shell.core.state.view!.stages[stage]!, 1), step };
  return { bytes: encodeState(state), hash: stateHash(state) };
}

async function send(site: Site, options: Sending): Promise<Response> {
  const { peer, step = 1, stage = 0, gen = site.shell.core.state.gen } = options;
  const good = stateOf(site, Math.min(stage, 1));
  const { bytes = good.bytes, hash = good.hash } = options;
  const headers = {
    ...{ "x-shoal-gen": String(gen), "x-shoal-hash": hash, "content-length": String(bytes.length) },
    ...options.headers,
  };
  return await site.ask(`/api/state/${step}/${stage}`, {
    method: "PUT",
    token: JOIN,
    peer,
    body: bytes,
    headers,
  });
}

Deno.test("http: a state is taken from its holder once, and given to every peer", async () => {
  await using site = await openSite();
  askForState(site);
  const { bytes } = stateOf(site, 0);
  const response = await send(site, { peer: "a" });
  assert.deepEqual([response.status, await response.json()], [200, { stored: bytes.length }]);
  await assertProblem(await send(site, { peer: "a" }), 409, "bad-state");
  const given = await site.ask("/api/state/1/0", { token: JOIN, peer: "b" });
  assert.deepEqual(new Uint8Array(await given.arrayBuffer()), bytes);
  await assertProblem(await site.ask("/api/state/1/1", { token: JOIN, peer: "b" }), 404, "bad-state");
  assert.equal((await send(site, { peer: "b", stage: 1 })).status, 200);
  assert.equal(site.shell.core.state.snapshots.at(-1)!.step, 1);
});

Deno.test("http: a state that is not asked for, or not of its holder, is refused", async () => {
  await using site = await openSite();
  askForState(site);
  const { gen } = site.shell.core.state;
  const refused: [string, Sending][] = [
    ["of a peer that does not hold the stage", { peer: "b" }],
    ["of another step", { peer: "a", step: 2 }],
    ["of an older generation", { peer: "a", gen: gen - 1 }],
    ["of a stage that is not", { peer: "a", stage: 7 }],
    ["of no number", { peer: "a", step: NaN }],
    ["without a generation", { peer: "a", headers: { "x-shoal-gen": "" } }],
  ];
  for (const [what, options] of refused) {
    await assertProblem(await send(site, options), 409, "bad-state").catch((error) => {
      throw new Error(what, { cause: error });
    });
  }
  await assertProblem(await send(site, { peer: "stranger" }), 401, "bad-token");
  site.sockets.tickets.set("b", "stolen");
  const forged = { "x-shoal-ticket": "ticket of a" };
  await assertProblem(
    await site.ask("/api/state/1/0", { token: JOIN, peer: "b", headers: forged }),
    404,
    "bad-state",
  );
  site.sockets.tickets.delete("a");
  await assertProblem(await send(site, { peer: "a" }), 401, "bad-token");
  assert.deepEqual(site.shell.core.state.pending?.files, []);
});

Deno.test("http: a state of wrong size, shape, step or hash is refused", async () => {
  await using site = await openSite();
  askForState(site);
  const good = stateOf(site, 0);
  const tooLong = { peer: "a", headers: { "content-length": String(100 << 20) } };
  await assertProblem(await send(site, tooLong), 413, "bad-state");
  await assertProblem(
    await send(site, { peer: "a", headers: { "content-length": "many" } }),
    413,
    "bad-state",
  );
  const other = stateOf(site, 1);
  const wrong: Sending[] = [
    { peer: "a", bytes: other.bytes, hash: other.hash },
    { peer: "a", bytes: good.bytes.slice(0, -4) },
    { peer: "a", bytes: new Uint8Array(64) },
    { peer: "a", bytes: new Uint8Array(0) },
    { peer: "a", ...stateOf(site, 0, 2) },
    { peer: "a", hash: other.hash },
    { peer: "a", hash: "" },
  ];
  for (const options of wrong) await assertProblem(await send(site, options), 422, "bad-state");
  assert.deepEqual(site.shell.core.state.pending?.files, []);
  assert.equal((await send(site, { peer: "a" })).status, 200);
});
