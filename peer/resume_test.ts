// A peer that outlives its coordinator: a real run over real sockets, whose coordinator vanishes without a word and comes back
// from its log on the same port. Here it is who the peer is taken for, what it says it holds, that the run goes on with it, and
// whom it refuses to follow; histories with many peers and faults are simulated.
import assert from "node:assert/strict";
import { join } from "node:path";
import type { ShellEvent } from "../coordinator/event_queue.ts";
import { createApp } from "../coordinator/http/app.ts";
import { Door } from "../coordinator/http/door.ts";
import { Sockets } from "../coordinator/http/sockets.ts";
import { Shell } from "../coordinator/shell.ts";
import { loadCorpus, type LoadedCorpus } from "../coordinator/store/corpus.ts";
import { Pins } from "../coordinator/store/pins.ts";
import { EventLog } from "../coordinator/store/event_log.ts";
import { lookAtRunLog, RUN_LOG_NAME, RunLog } from "../coordinator/store/run_log.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";
import { createLinkHost } from "./net/host.ts";
import { Peer } from "./peer.ts";
import type { SessionEnd } from "./session.ts";
import {
  type CoordinatorMessage,
  decodeCoordinatorMessage,
  type Have,
  type PeerMessage,
  PROTOCOL_VERSION,
  readTagged,
  tagControl,
} from "./wire/control.ts";
import type { TabPhase, TabSnapshot } from "./wire/status.ts";

/** Only a hang reaches it. */
const PATIENCE_MS = 60_000;
const TOKEN = "the-join-token";

const CONFIG = {
  ...{ n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1, n_stage: 1 },
  ...{ gradient_accumulation_steps: 2, max_iters: 100_000, warmup_iters: 0, eval_interval: 100_000 },
  ...{ snapshot_interval: 10_000, checkpoint_interval: 10_000, eval_iters: 1, sample_chars: 0 },
};

interface Life {
  shell: Shell;
  log: RunLog;
  /** What the sockets told the core. */
  fed: ShellEvent[];
  fetch(request: Request): Response | Promise<Response>;
}

/** A port behind which one coordinator after another lives. */
class Place implements AsyncDisposable {
  readonly folder: string;
  readonly corpus: LoadedCorpus;
  readonly server: Deno.HttpServer<Deno.NetAddr>;
  life: Life | null = null;

  private constructor(folder: string, corpus: LoadedCorpus) {
    this.folder = folder;
    this.corpus = corpus;
    this.server = Deno.serve(
      { hostname: "127.0.0.1", port: 0, onListen: () => {} },
      (request) => this.life?.fetch(request) ?? new Response("nobody", { status: 502 }),
    );
  }

  static async open(): Promise<Place> {
    const folder = await Deno.makeTempDir({ prefix: "shoal-resume-" });
    const text = join(folder, "text.txt");
    await Deno.writeTextFile(text, "a small text to learn from. ".repeat(40));
    return new Place(folder, await loadCorpus(text));
  }

  get origin(): string {
    return `http://127.0.0.1:${this.server.addr.port}`;
  }

  begin(how: "new" | "restored"): Life {
    const config = readConfig({ ...CONFIG, dataset: join(this.folder, "text.txt") });
    const spec = specOf(config, this.corpus.vocab.length);
    const begin = { config, spec, corpusHash: this.corpus.hash, committed: 0 };
    const log = how === "new" ? RunLog.create(this.folder, begin) : RunLog.reopen(this.folder);
    const shell = new Shell({
      ...{
        config,
        spec,
        corpus: this.corpus,
        log: new EventLog(this.folder),
        runLog: log,
        outDir: this.folder,
      },
      restore: how === "restored",
      onEvent: () => {},
      sample: () => Promise.resolve(""),
    });
    const fed: ShellEvent[] = [];
    const { connections, identities, options, core } = shell;
    const door = new Door({ runDir: this.folder, joinToken: TOKEN, now: () => Date.now() });
    const sockets = new Sockets({
      ...{ connections, identities, options, core, takeId: () => shell.takeId() },
      get regathering() {
        return shell.regathering;
      },
      get epoch() {
        return shell.epoch;
      },
      feed(event) {
        fed.push(event);
        shell.feed(event);
      },
    }, door);
    const app = createApp({
      ...{ shell, sockets, door, adminToken: "admin", runName: "test", operator: "the test" },
      ...{ webRoot: this.folder, outDir: this.folder, joinLink: () => "" },
    });
    return this.life = { shell, log, fed, fetch: (request) => app.fetch(request) };
  }

  /** As kill -9 leaves it: the sockets are gone, nobody was told anything, the log is what it is. */
  async vanish(): Promise<void> {
    const { shell } = this.life!;
    this.life = null;
    const connections = [...shell.connections.values()];
    shell.connections.clear();
    for (const connection of connections) connection.close("");
    await shell.close("gone");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.life?.shell.close("the test is over");
    await this.server.shutdown();
    await Deno.remove(this.folder, { recursive: true });
  }
}

class Contributor {
  readonly peer: Peer;
  readonly phases: TabPhase[] = [];
  readonly end: Promise<SessionEnd>;
  readonly offline: string[] = [];
  last: TabSnapshot | null = null;

  constructor(origin: string) {
    this.peer = new Peer({
      ...{ origin, token: TOKEN, runtime: "deno", adapter: "none", engine: "cpu", memoryBytes: 1e9 },
      createEngine: (build) => Promise.resolve(createCpuEngine(build)),
      createHost: (selfId, relay) => {
        const createLink = () => assert.fail("one peer opened a link");
        return createLinkHost({ selfId, relay, createLink });
      },
      onChange: (snapshot) => {
        if (this.phases.at(-1) !== snapshot.phase) this.phases.push(snapshot.phase);
        if (snapshot.phase === "offline") this.offline.push(snapshot.reason);
        this.last = snapshot;
      },
    });
    this.end = this.peer.run();
  }

  async leave(): Promise<void> {
    this.peer.leaveNow();
    await this.end;
  }
}

async function until(what: string, holds: () => boolean): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!holds()) {
    if (performance.now() > deadline) assert.fail(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

function said(life: Life, type: PeerMessage["type"]): ShellEvent[] {
  return life.fed.filter((event) => event.type === "message" && event.message.type === type);
}

async function trained(life: Life, steps: number): Promise<void> {
  await until(`${steps} steps`, () => life.shell.core.state.committed >= steps);
}

Deno.test("resume: a peer outlives its coordinator, comes back as who it was, and the run goes on with what it holds", async () => {
  await using place = await Place.open();
  const first = place.begin("new");
  const one = new Contributor(place.origin);
  await trained(first, 5);
  const { epoch } = first.shell;
  const identity = first.shell.identities.get("deno-1")!;
  await place.vanish();
  await until("the page to say so", () => one.phases.at(-1) === "offline");
  const second = place.begin("restored");
  const { committed } = second.log.run;
  assert.ok(committed >= 5 && second.shell.core.state.committed === committed);
  await until("its return", () => second.fed.some((event) => event.type === "return"));
  const back = second.fed.find((event) => event.type !== "tick")!;
  assert.ok(back.type === "return", `${back.type} came first`);
  assert.deepEqual([back.peer.id, back.peer.engine, back.peer.memoryBytes], ["deno-1", "cpu", 1e9]);
  assert.ok(back.peer.blockMs > 0, "it would have to be measured again");
  assert.deepEqual(back.have!.stages.map((it) => it.stage), [0]);
  // The commit of the last step may have been on its way when the coordinator was killed.
  assert.ok([committed, committed - 1].includes(back.have!.stages[0]!.step), JSON.stringify(back.have));
  assert.deepEqual(second.shell.identities.get("deno-1"), identity);
  await trained(second, committed + 5);
  assert.deepEqual([second.shell.core.state.stepsRedone, second.shell.epoch], [0, epoch]);
  assert.equal(second.fed.some((event) => event.type === "join"), false);
  assert.equal(one.phases.filter((phase) => phase === "measuring").length, 1, "it was measured again");
  assert.match(one.offline[0]!, /does not answer; this computer completes what it can .*trying again in 1 s/);
  assert.equal(one.phases.at(-1), "training");
  await one.leave();
});

Deno.test("resume: one coordinator after another is killed, and each finds the run where the last one left it", async () => {
  await using place = await Place.open();
  let life = place.begin("new");
  const one = new Contributor(place.origin);
  let reached = 0;
  for (let killed = 0; killed < 4; killed++) {
    await trained(life, reached + 2);
    reached = life.shell.core.state.committed;
    await place.vanish();
    life = place.begin("restored");
    assert.equal(life.shell.core.state.committed, reached);
  }
  await trained(life, reached + 2);
  assert.equal(life.shell.core.state.stepsRedone, 0);
  assert.deepEqual(Object.keys(life.shell.core.state.peers), ["deno-1"]);
  await one.leave();
});

Deno.test("resume: back with an older log, the coordinator is refused, and nothing is rewound", async () => {
  await using place = await Place.open();
  const first = place.begin("new");
  const one = new Contributor(place.origin);
  await trained(first, 5);
  const path = join(place.folder, RUN_LOG_NAME);
  const copy = await Deno.readFile(path);
  const older = lookAtRunLog(place.folder)!.run.committed;
  await trained(first, older + 3);
  await place.vanish();
  await Deno.writeFile(path, copy);
  const second = place.begin("restored");
  const end = await one.end;
  assert.deepEqual([end.kind, end.code], ["refused", "stale-coordinator"]);
  assert.match(end.reason, /counts \d+ committed steps, this peer has seen \d+: .*shoal resume/);
  assert.equal(one.last!.reason, end.reason);
  assert.deepEqual(said(second, "logged"), []);
});

Deno.test("resume: a coordinator that was set back on purpose is followed, as a new peer", async () => {
  await using place = await Place.open();
  const first = place.begin("new");
  const one = new Contributor(place.origin);
  await trained(first, 5);
  await place.vanish();
  await until("the page to say so", () => one.phases.at(-1) === "offline");
  one.peer.pause();
  const second = place.begin("new");
  await until("its measurement", () => said(second, "measured").length === 1);
  const [join] = second.fed.filter((event) => event.type !== "tick");
  assert.ok(join!.type === "join" && join!.peer.id === "deno-1");
  assert.equal(said(second, "pause").length, 1, "its owner's wish was forgotten");
  assert.equal(second.shell.core.state.committed, 0);
  await one.leave();
});

type Resume = NonNullable<(PeerMessage & { type: "hello" })["resume"]>;

/** What the coordinator answers to a peer that asks to resume. */
async function hear(
  origin: string,
  resume: Resume,
  more: { have?: Have; sockets?: WebSocket[] } = {},
): Promise<CoordinatorMessage> {
  const socket = new WebSocket(`${origin.replace("http", "ws")}/api/peer`);
  socket.binaryType = "arraybuffer";
  const about = { token: TOKEN, runtime: "tab" as const, adapter: "", engine: "" };
  const hello = {
    type: "hello" as const,
    version: PROTOCOL_VERSION,
    ...about,
    resume,
    ...(more.have === undefined ? {} : { have: more.have }),
  };
  socket.onopen = () => socket.send(tagControl(hello) as Uint8Array<ArrayBuffer>);
  const bytes = await new Promise<Uint8Array>((resolve, reject) => {
    socket.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => resolve(new Uint8Array(data));
    socket.onclose = () => reject(new Error("it closed without an answer"));
  });
  if (more.sockets === undefined) socket.close();
  else more.sockets.push(socket);
  const tagged = readTagged(bytes);
  assert.ok(tagged.ok && tagged.value.kind === "control");
  const message = decodeCoordinatorMessage(tagged.value.bytes);
  assert.ok(message.ok);
  return message.value;
}

Deno.test("resume: who is unknown, has a wrong ticket, or is of another epoch is no member", async () => {
  await using place = await Place.open();
  const first = place.begin("new");
  const one = new Contributor(place.origin);
  await trained(first, 5);
  await place.vanish();
  await one.leave();
  // The organizer's wish, as it was kept before the coordinator went.
  new Pins(place.folder).set("deno-1", null, 1);
  const second = place.begin("restored");
  const [{ ticket, incarnation } = assert.fail("no member")] = second.log.run.peers;
  const good = { peer: "deno-1", ticket, epoch: second.shell.epoch };
  for (
    const wrong of [{ peer: "deno-2" }, { ticket: "wrong" }, { ticket: ticket.slice(1) }, { epoch: "x" }]
  ) {
    const answer = await hear(place.origin, { ...good, ...wrong });
    assert.deepEqual([answer.type, "code" in answer && answer.code], ["refused", "not-resumed"]);
  }
  assert.deepEqual(second.fed, []);
  const answer = await hear(place.origin, good);
  assert.ok(answer.type === "welcome" && answer.resumed);
  assert.deepEqual([answer.peer, answer.incarnation, answer.ticket], ["deno-1", incarnation, ticket]);
  assert.equal(second.shell.core.state.peers["deno-1"]?.pin, 1, "its pin was forgotten");
});

Deno.test("resume: a peer that comes back twice is there once, on its newest socket", async () => {
  await using place = await Place.open();
  const first = place.begin("new");
  const one = new Contributor(place.origin);
  await trained(first, 5);
  await place.vanish();
  await one.leave();
  const second = place.begin("restored");
  const [{ ticket } = assert.fail("no member")] = second.log.run.peers;
  // Its state is of another cut, so that the core goes on waiting.
  const have = { cut: 99, stages: [] };
  const resume = { peer: "deno-1", ticket, epoch: second.shell.epoch };
  const sockets: WebSocket[] = [];
  for (const _ of [1, 2]) assert.equal((await hear(place.origin, resume, { have, sockets })).type, "welcome");
  await until("the end of the first socket", () => sockets[0]!.readyState === WebSocket.CLOSED);
  // What the second one says is heard after the first one's end.
  sockets[1]!.send(tagControl({ type: "pause", paused: true }) as Uint8Array<ArrayBuffer>);
  await until("its words", () => said(second, "pause").length === 1);
  assert.deepEqual(second.fed.filter((event) => event.type === "gone"), []);
  assert.equal(second.shell.connections.size, 1);
  sockets[1]!.close();
  await until("its end", () => second.fed.some((event) => event.type === "gone"));
});

Deno.test("resume: a coordinator that never went away takes nobody back under an old id", async () => {
  await using place = await Place.open();
  const life = place.begin("new");
  const one = new Contributor(place.origin);
  await trained(life, 5);
  const { ticket } = life.shell.identities.get("deno-1")!;
  const answer = await hear(place.origin, { peer: "deno-1", ticket, epoch: life.shell.epoch });
  assert.ok(answer.type === "refused" && answer.code === "not-resumed");
  life.shell.connections.get("deno-1")!.close("cut");
  await until("its second life", () => life.shell.core.state.peers["deno-2"] !== undefined);
  await one.leave();
});
