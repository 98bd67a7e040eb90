// The coordinator as a whole, over real sockets: the handshake and its refusals, signals and relayed bytes between peers, raw
// HTTP requests, and starts that must fail before anything is opened.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readConfig } from "../peer/model/config.ts";
import {
  type CoordinatorMessage,
  decodeCoordinatorMessage,
  encodeControl,
  type PeerMessage,
  PROTOCOL_VERSION,
  readTagged,
  TAG_CONTROL,
  tagControl,
  type Tagged,
  tagRelay,
} from "../peer/wire/control.ts";
import { type ErrorCode, ShoalError } from "../peer/wire/errors.ts";
import { type Coordinator, startCoordinator } from "./main.ts";
import { lookAtRunLog, RunLog } from "./store/run_log.ts";

const CONFIG = {
  ...{
    n_layer: 1,
    n_head: 1,
    n_kv_head: 1,
    n_embd: 8,
    n_inner: 8,
    block_size: 8,
    batch_size: 1,
    max_iters: 5,
  },
  ...{ warmup_iters: 0, min_peers: 9 },
};

const PATIENCE_MS = 30_000;

interface Run extends AsyncDisposable {
  coordinator: Coordinator;
  folder: string;
  origin: string;
  token: string;
}

async function start(changes: Record<string, unknown> = {}, more: { port?: number } = {}): Promise<Run> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-main-" });
  await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
  await Deno.mkdir(join(folder, "dist"));
  await Deno.writeTextFile(join(folder, "secret.txt"), "outside");
  try {
    const coordinator = await startCoordinator({
      config: readConfig({ ...CONFIG, dataset: join(folder, "text.txt"), ...changes }),
      ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
      ...{ webRoot: join(folder, "dist"), onEvent: () => {}, ...more },
    });
    const { origin, hash } = new URL(coordinator.joinLink);
    const stop = async () => {
      await coordinator.stop("the test is over");
      await Deno.remove(folder, { recursive: true });
    };
    return { coordinator, folder, origin, token: hash.slice(1), [Symbol.asyncDispose]: stop };
  } catch (error) {
    const left = [...Deno.readDirSync(folder)].map((entry) => entry.name).sort();
    await Deno.remove(folder, { recursive: true });
    throw Object.assign(error as Error, { left });
  }
}

/** A client that speaks raw bytes and remembers what it heard. */
class Client {
  readonly socket: WebSocket;
  readonly opened: Promise<void>;
  readonly closed: Promise<{ code: number; reason: string }>;
  readonly heard: Tagged[] = [];
  #wake: () => void = () => {};

  constructor(origin: string) {
    this.socket = new WebSocket(`${origin.replace("http", "ws")}/api/peer`);
    this.socket.binaryType = "arraybuffer";
    this.opened = new Promise((resolve) => this.socket.onopen = () => resolve());
    this.closed = new Promise((resolve) => {
      this.socket.onclose = ({ code, reason }) => {
        resolve({ code, reason });
        this.#wake();
      };
    });
    this.socket.onmessage = (event: MessageEvent<ArrayBuffer>) => {
      const tagged = readTagged(new Uint8Array(event.data));
      assert.ok(tagged.ok, "the coordinator sent a malformed message");
      this.heard.push(tagged.value);
      this.#wake();
    };
  }

  async send(data: Uint8Array | string): Promise<void> {
    await this.opened;
    this.socket.send(data as Uint8Array<ArrayBuffer>);
  }

  /** The first message of the type, now or later; fails if the connection ends before. */
  async message<T extends CoordinatorMessage["type"]>(
    type: T,
  ): Promise<Extract<CoordinatorMessage, { type: T }>> {
    const found = await this.#find((it) => {
      const decoded = it.kind === "control" ? decodeCoordinatorMessage(it.bytes) : null;
      return decoded?.ok && decoded.value.type === type ? decoded.value : undefined;
    }, type);
    return found as Extract<CoordinatorMessage, { type: T }>;
  }

  relayed(): Promise<Tagged & { kind: "relay" }> {
    return this.#find((it) => it.kind === "relay" ? it : undefined, "relayed bytes");
  }

  async #find<T>(pick: (it: Tagged) => T | undefined, what: string): Promise<T> {
    while (true) {
      const found = this.heard.map(pick).find((it) => it !== undefined);
      if (found !== undefined) return found;
      if (this.socket.readyState === WebSocket.CLOSED) assert.fail(`the connection ended without ${what}`);
      await this.#wait(what);
    }
  }

  /** Until something is heard; only a hang reaches the limit. */
  async #wait(what: string): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`waited too long for ${what}`)), PATIENCE_MS);
    });
    try {
      await Promise.race([late, new Promise<void>((resolve) => this.#wake = resolve)]);
    } finally {
      clearTimeout(timer);
    }
  }

  async close(): Promise<void> {
    if (this.socket.readyState !== WebSocket.CLOSED) this.socket.close(1000);
    await this.closed;
  }
}

function hello(run: Run, changes: Partial<PeerMessage & { type: "hello" }> = {}): Uint8Array {
  const about = { runtime: "deno" as const, adapter: "none", engine: "cpu" };
  return tagControl({ type: "hello", version: PROTOCOL_VERSION, token: run.token, ...about, ...changes });
}

async function admitted(run: Run): Promise<{ client: Client; id: string; ticket: string }> {
  const client = new Client(run.origin);
  await client.send(hello(run));
  const { peer, ticket } = await client.message("welcome");
  return { client, id: peer, ticket };
}

Deno.test("coordinator: a peer of this version with the token is welcomed with all it needs", async () => {
  await using run = await start();
  const { client, id, ticket } = await admitted(run);
  const welcome = await client.message("welcome");
  assert.equal(id, "deno-1");
  assert.equal(welcome.config.n_embd, 8);
  assert.equal(welcome.spec.vocab_size, new Set("a small text to learn from. ").size);
  assert.equal(welcome.corpus.tokens, 28 * 40);
  assert.match(ticket, /^[\w-]{22}$/);
  const other = await admitted(run);
  assert.notEqual(other.ticket, ticket);
  assert.deepEqual(Object.keys(run.coordinator.shell.core.state.peers), ["deno-1", "deno-2"]);
  await Promise.all([client.close(), other.client.close()]);
});

Deno.test("coordinator: strangers get a coded refusal over the socket, and no place in the run", async () => {
  await using run = await start();
  const ready = tagControl({ type: "ready", gen: 1 });
  const garbage = Uint8Array.of(TAG_CONTROL, 0xc1, 0xff);
  const refusals: [string, Uint8Array | string, ErrorCode][] = [
    ["an older version", hello(run, { version: PROTOCOL_VERSION - 1 }), "wrong-version"],
    ["a later version", hello(run, { version: PROTOCOL_VERSION + 1 }), "wrong-version"],
    ["a wrong token", hello(run, { token: "wrong" }), "bad-token"],
    ["an empty token", hello(run, { token: "" }), "bad-token"],
    ["another first message", ready, "bad-message"],
    ["relayed bytes before hello", tagRelay("deno-1", Uint8Array.of(1)), "bad-message"],
    ["no msgpack", garbage, "bad-message"],
    ["nothing", new Uint8Array(0), "bad-message"],
    ["a text message", "hello", "bad-message"],
    ["a message over 1 MiB", new Uint8Array((1 << 20) + 1), "bad-message"],
  ];
  for (const [what, bytes, code] of refusals) {
    const client = new Client(run.origin);
    await client.send(bytes);
    const refused = await client.message("refused");
    assert.equal(refused.code, code, what);
    assert.ok(refused.reason.length > 10, what);
    assert.deepEqual(await client.closed, { code: 4002, reason: code }, what);
  }
  assert.deepEqual(run.coordinator.shell.core.state.peers, {});
  assert.equal(run.coordinator.shell.connections.size, 0);
});

Deno.test("coordinator: a refused client that says hello after all is not let in", async () => {
  await using run = await start();
  const client = new Client(run.origin);
  await client.opened;
  client.socket.send(Uint8Array.of(9));
  for (let i = 0; i < 3; i++) client.socket.send(hello(run) as Uint8Array<ArrayBuffer>);
  await client.closed;
  assert.equal((await client.message("refused")).code, "bad-message");
  assert.equal(run.coordinator.shell.core.state.events.filter((event) => event.kind === "join").length, 0);
});

Deno.test("coordinator: a member that breaks the protocol loses its place, the others keep theirs", async () => {
  await using run = await start();
  const [good, bad] = [await admitted(run), await admitted(run)];
  const wrong = { type: "measured", blockMs: -1, memoryBytes: 1 } as PeerMessage;
  const body = encodeControl(wrong);
  await bad.client.send(Uint8Array.of(TAG_CONTROL, ...body));
  assert.equal((await bad.client.message("refused")).code, "bad-message");
  await bad.client.closed;
  // The next answer comes after the departure was taken in.
  await good.client.send(hello(run));
  const late = await admitted(run);
  assert.deepEqual(Object.keys(run.coordinator.shell.core.state.peers), [good.id, late.id]);
  await Promise.all([good.client.close(), late.client.close()]);
});

Deno.test("coordinator: signals and relayed bytes reach the peer that is named, under the sender's own name", async () => {
  await using run = await start();
  const [one, two, three] = [await admitted(run), await admitted(run), await admitted(run)];
  await one.client.send(tagControl({ type: "signal", peer: two.id, data: "7|offer" }));
  await one.client.send(tagControl({ type: "signal", peer: "nobody", data: "7|offer" }));
  await one.client.send(tagRelay("nobody", Uint8Array.of(9)));
  await one.client.send(tagRelay(two.id, Uint8Array.of(1, 2, 3)));
  const { peer, bytes } = await two.client.relayed();
  assert.deepEqual([peer, [...bytes]], [one.id, [1, 2, 3]]);
  assert.deepEqual(await two.client.message("signal"), { type: "signal", peer: one.id, data: "7|offer" });
  assert.ok(three.client.heard.every((it) => it.kind === "control"), "relayed to a peer that was not named");
  await Promise.all([one, two, three].map(({ client }) => client.close()));
});

Deno.test("coordinator: an invitation for one computer lets in one at a time, and who leaves makes room", async () => {
  await using run = await start();
  const { hash, origin } = new URL(run.coordinator.adminLink);
  const asAdmin = { headers: { authorization: `Bearer ${hash.slice(1)}` } };
  const made = await fetch(`${origin}/api/invitations`, { ...asAdmin, method: "POST", body: '{"seats":1}' });
  const token = new URL((await made.json()).link).hash.slice(1);
  const first = new Client(run.origin);
  await first.send(hello(run, { token }));
  const { peer } = await first.message("welcome");
  const second = new Client(run.origin);
  await second.send(hello(run, { token }));
  const refused = await second.message("refused");
  assert.deepEqual([refused.code, /one computer at a time/.test(refused.reason)], ["run-full", true]);
  await first.close();
  const { shell } = run.coordinator;
  while (shell.core.state.peers[peer] !== undefined) await new Promise((resolve) => setTimeout(resolve, 5));
  const third = new Client(run.origin);
  await third.send(hello(run, { token }));
  await third.message("welcome");
  await Promise.all([second.close(), third.close()]);
});

Deno.test("coordinator: its end is told to every peer", async () => {
  const run = await start();
  const { client } = await admitted(run);
  await run[Symbol.asyncDispose]();
  assert.equal((await client.message("done")).reason, "the test is over");
  await client.closed;
});

/** One request as a client would never write it; the whole answer. */
async function raw(run: Run, request: string): Promise<string> {
  const { hostname, port } = new URL(run.origin);
  using socket = await Deno.connect({ hostname, port: Number(port) });
  await socket.write(new TextEncoder().encode(request));
  return await new Response(socket.readable).text().catch(() => "");
}

Deno.test("coordinator: a raw request for a file outside the pages finds nothing", async () => {
  await using run = await start();
  for (
    const path of [
      "/../secret.txt",
      "/..%2fsecret.txt",
      "/%2e%2e/secret.txt",
      "//../secret.txt",
      "../secret.txt",
    ]
  ) {
    const answer = await raw(run, `GET ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
    assert.match(answer, /^HTTP\/1\.1 4\d\d /, path);
    assert.ok(!answer.includes("outside"), path);
  }
});

Deno.test("coordinator: a peer's address without an upgrade answers what is expected", async () => {
  await using run = await start();
  const response = await fetch(`${run.origin}/api/peer`);
  assert.deepEqual([response.status, (await response.json()).code], [426, "usage"]);
});

Deno.test("coordinator: what cannot be trained fails before a folder or a port is opened", async () => {
  const failures: [Record<string, unknown>, ErrorCode, RegExp][] = [
    [{ dataset: "no such file" }, "bad-corpus", /known data set/],
    [{ block_size: 4096 }, "bad-corpus", /too short.*smaller block_size/],
  ];
  for (const [changes, code, says] of failures) {
    await assert.rejects(start(changes), (error: ShoalError & { left: string[] }) => {
      assert.equal(error.code, code);
      assert.match(error.message, says);
      assert.deepEqual(error.left, ["dist", "secret.txt", "text.txt"], "a run's folder was made");
      return true;
    });
  }
});

Deno.test("coordinator: a run goes on with its text alone, also if another one has the same numbers; an old log tells no words", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-main-" });
  const text = join(folder, "text.txt"), outDir = join(folder, "run");
  const open = async (restore: boolean) => {
    const coordinator = await startCoordinator({
      ...{ config: readConfig({ ...CONFIG, dataset: text }), host: "127.0.0.1", port: 0, outDir, restore },
      ...{ operator: "the test", runName: "test", webRoot: folder, onEvent: () => {} },
    });
    await coordinator.stop("the test goes on");
  };
  try {
    await Deno.writeTextFile(text, "abcab".repeat(40));
    await open(false);
    await open(true);
    await Deno.writeTextFile(text, "abcba".repeat(40));
    await assert.rejects(open(true), /is not the one that the run began with/);
    await Deno.writeTextFile(text, "xyzxy".repeat(40));
    await assert.rejects(open(true), /do not stand for what they did/);
    const { config, spec, corpusHash, committed, vocabHash } = lookAtRunLog(outDir)!.run;
    assert.match(vocabHash ?? "", /^[0-9a-f]{64}$/);
    RunLog.create(outDir, { config, spec, corpusHash, committed }).close();
    await open(true);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("coordinator: a port that is taken is named, and nothing stays open", async () => {
  await using run = await start();
  const port = Number(new URL(run.origin).port);
  await assert.rejects(start({}, { port }), (error: ShoalError) => {
    assert.equal(error.code, "usage");
    assert.match(error.message, new RegExp(`127.0.0.1:${port}.*choose another --port`));
    return true;
  });
});
