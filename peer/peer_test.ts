// A peer against a real coordinator in this process, alone and on the CPU: its phases, its owner's wishes, and how it stands
// lost connections and refusals. Links have their own tests; one peer needs none.
import assert from "node:assert/strict";
import { join } from "node:path";
import { type Coordinator, startCoordinator } from "../coordinator/main.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { readConfig } from "./model/config.ts";
import { createLinkHost } from "./net/host.ts";
import { Peer } from "./peer.ts";
import type { SessionEnd } from "./session.ts";
import { tagControl } from "./wire/control.ts";
import type { TabPhase, TabSnapshot } from "./wire/status.ts";

/** Only a hang reaches it. */
const PATIENCE_MS = 60_000;

const CONFIG = {
  ...{ n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1 },
  ...{ gradient_accumulation_steps: 2, max_iters: 100_000, warmup_iters: 0, eval_interval: 100_000 },
  ...{ snapshot_interval: 10, checkpoint_interval: 100_000, eval_iters: 1, sample_chars: 0 },
};

interface Run extends AsyncDisposable {
  coordinator: Coordinator;
  core: Coordinator["shell"]["core"]["state"];
  origin: string;
  token: string;
}

async function start(changes: Record<string, unknown> = {}): Promise<Run> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-peer-" });
  await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
  const coordinator = await startCoordinator({
    config: readConfig({ ...CONFIG, dataset: join(folder, "text.txt"), ...changes }),
    ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
    ...{ webRoot: folder, onEvent: () => {} },
  });
  const { origin, hash } = new URL(coordinator.joinLink);
  return {
    ...{ coordinator, core: coordinator.shell.core.state, origin, token: hash.slice(1) },
    async [Symbol.asyncDispose]() {
      await coordinator.stop("the test is over");
      await Deno.remove(folder, { recursive: true });
    },
  };
}

/** A peer, what its page would show, and its end. */
class Contributor {
  readonly peer: Peer;
  readonly phases: TabPhase[] = [];
  readonly end: Promise<SessionEnd>;
  last: TabSnapshot | null = null;

  constructor(at: { origin: string; token: string }, signal?: AbortSignal) {
    this.peer = new Peer({
      ...{
        origin: at.origin,
        token: at.token,
        runtime: "deno",
        adapter: "none",
        engine: "cpu",
        memoryBytes: 1e9,
      },
      createEngine: (build) => Promise.resolve(createCpuEngine(build)),
      createHost: (selfId, relay) => {
        const createLink = () => assert.fail("one peer opened a link");
        return createLinkHost({ selfId, relay, createLink });
      },
      onChange: (snapshot) => {
        if (this.phases.at(-1) !== snapshot.phase) this.phases.push(snapshot.phase);
        this.last = snapshot;
      },
    });
    this.end = this.peer.run(signal);
  }

  phase(wanted: TabPhase): Promise<void> {
    return until(`phase ${wanted} after ${this.phases.join(", ")}`, () => this.phases.at(-1) === wanted);
  }
}

async function until(what: string, holds: () => boolean): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!holds()) {
    if (performance.now() > deadline) assert.fail(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

Deno.test("peer: alone it trains a run to its end, and its page sees the end", async () => {
  await using run = await start({ max_iters: 8 });
  const contributor = new Contributor(run);
  const end = await contributor.end;
  assert.deepEqual([end.kind, end.reason], ["done", "the run is finished"]);
  assert.equal(run.core.committed, 8);
  const { phases, last } = contributor;
  assert.deepEqual([phases[0], phases.at(-1)], ["measuring", "done"]);
  // Eight steps of two micro-batches of eight tokens in each of two stages, and the last evaluation.
  assert.equal(last!.tokens, (8 * 2 + 1) * 8 * run.core.view!.stages.length);
  assert.equal(last!.reason, "the run is finished");
});

Deno.test("peer: pause, resume, and leave at the end of the step, without a step lost", async () => {
  await using run = await start({ n_stage: 1 });
  const contributor = new Contributor(run);
  await contributor.phase("training");
  await until("two steps", () => run.core.committed >= 2);
  assert.deepEqual([contributor.last!.stage, contributor.last!.layers], [0, [0, 2]]);
  assert.ok(contributor.last!.params > 0 && contributor.last!.memoryBytes > 0);
  contributor.peer.pause();
  await until("the pause", () => run.core.view === null && contributor.last!.phase === "paused");
  const paused = run.core.committed;
  contributor.peer.resume();
  await until("two more steps", () => run.core.committed >= paused + 2);
  contributor.peer.finishAndLeave();
  const end = await contributor.end;
  assert.deepEqual([end.kind, contributor.phases.at(-1)], ["left", "left"]);
  assert.deepEqual([Object.keys(run.core.peers), run.core.stepsRedone], [[], 0]);
});

Deno.test("peer: leaving at once does not wait for the step, and an abort is the same", async () => {
  await using run = await start({ min_peers: 9 });
  const controller = new AbortController();
  const [one, two] = [new Contributor(run), new Contributor(run, controller.signal)];
  await until("both to begin", () => one.phases.length > 0 && two.phases.length > 0);
  one.peer.leaveNow();
  controller.abort();
  for (const contributor of [one, two]) {
    assert.equal((await contributor.end).kind, "left");
    assert.equal(contributor.phases.at(-1), "left");
  }
});

Deno.test("peer: put out by the organizer it stays out, and says why", async () => {
  await using run = await start({ n_stage: 1 });
  const contributor = new Contributor(run);
  await contributor.phase("training");
  const reason = "put out by the organizer";
  run.coordinator.shell.feed({ type: "evict", peer: "deno-1", reason });
  assert.deepEqual(await contributor.end, { kind: "kicked", code: "kicked", reason });
  assert.deepEqual([contributor.last!.phase, contributor.last!.reason], ["kicked", reason]);
});

Deno.test("peer: a wrong token ends with the remedy and is not tried again", async () => {
  await using run = await start();
  const contributor = new Contributor({ origin: run.origin, token: "wrong" });
  const end = await contributor.end;
  assert.deepEqual([end.kind, end.code], ["refused", "bad-token"]);
  assert.match(contributor.last!.reason, /ask for a fresh link/);
});

Deno.test("peer: another version of the protocol has a screen of its own", async () => {
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, (request) => {
    const { socket, response } = Deno.upgradeWebSocket(request);
    socket.onmessage = () => {
      const refusal = { type: "refused" as const, code: "wrong-version", reason: "reload or update" };
      socket.send(tagControl(refusal) as Uint8Array<ArrayBuffer>);
    };
    return response;
  });
  const contributor = new Contributor({ origin: `http://127.0.0.1:${server.addr.port}`, token: "t" });
  assert.equal((await contributor.end).code, "wrong-version");
  assert.deepEqual([contributor.last!.phase, contributor.last!.reason], [
    "wrong-version",
    "reload or update",
  ]);
  await server.shutdown();
});

Deno.test("peer: a lost connection is made again, and a pause outlives it", async () => {
  await using run = await start({ n_stage: 1 });
  const contributor = new Contributor(run);
  await contributor.phase("training");
  contributor.peer.pause();
  await until("the pause", () => run.core.peers["deno-1"]?.paused === true);
  run.coordinator.shell.connections.get("deno-1")!.close("cut");
  await contributor.phase("offline");
  assert.match(contributor.last!.reason, /trying again in 1 s/);
  await until("the pause of the new connection", () => run.core.peers["deno-2"]?.paused === true);
  await until("its measurement", () => run.core.peers["deno-2"]!.blockMs > 0);
  assert.equal(run.core.view, null, "a paused peer was given work");
  contributor.peer.resume();
  await contributor.phase("training");
  contributor.peer.leaveNow();
  await contributor.end;
});

Deno.test("peer: who asked to leave is not brought back by a lost connection", async () => {
  await using run = await start({ n_stage: 1 });
  const contributor = new Contributor(run);
  await contributor.phase("training");
  // Both happen in one turn: the goodbye cannot arrive before the connection is gone.
  contributor.peer.finishAndLeave();
  run.coordinator.shell.connections.get("deno-1")!.close("cut");
  const end = await contributor.end;
  assert.equal(end.kind, "left");
  assert.ok(!contributor.phases.includes("offline"), contributor.phases.join());
});

Deno.test("peer: one that waits for its coordinator leaves when asked", async () => {
  const listener = Deno.listen({ hostname: "127.0.0.1", port: 0 });
  const { port } = listener.addr;
  listener.close();
  for (const leave of ["finishAndLeave", "leaveNow"] as const) {
    const contributor = new Contributor({ origin: `http://127.0.0.1:${port}`, token: "t" });
    await contributor.phase("offline");
    contributor.peer[leave]();
    assert.equal((await contributor.end).kind, "left");
    assert.equal(contributor.last!.phase, "left");
  }
});

Deno.test("peer: one that was in a run and has lost it leaves when asked, instead of joining again", async () => {
  await using run = await start({ n_stage: 1 });
  const contributor = new Contributor(run);
  await contributor.phase("training");
  run.coordinator.shell.connections.get("deno-1")!.close("cut");
  await contributor.phase("offline");
  contributor.peer.finishAndLeave();
  let over = false;
  void contributor.end.then(() => over = true);
  await until("its end", () => over || run.core.peers["deno-2"] !== undefined);
  assert.equal(run.core.peers["deno-2"], undefined, "it joined again");
  assert.equal((await contributor.end).kind, "left");
});
