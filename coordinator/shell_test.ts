// The shell between the core and the log: nothing that follows from a record is done before the record is on disk, a full disk
// stops the run and not the coordinator, and the run's history is written as it happens. The core's effects are given by hand.
import assert from "node:assert/strict";
import { join } from "node:path";
import { openSite, SPEC } from "../test/support/site.ts";
import { readConfig } from "../peer/model/config.ts";
import { type CoordinatorMessage, decodeCoordinatorMessage, readTagged } from "../peer/wire/control.ts";
import { ShoalError } from "../peer/wire/errors.ts";
import type { View } from "../peer/wire/run.ts";
import type { CommitRecord } from "./core/run_record.ts";
import type { CoordinatorEventLine } from "./core/run_state.ts";
import type { ShellEffect } from "./durable.ts";
import type { ShellEvent } from "./event_queue.ts";
import { Shell } from "./shell.ts";
import { EventLog } from "./store/event_log.ts";
import { lookAtRunLog, type NewRun, RunLog } from "./store/run_log.ts";

const CONFIG = readConfig({ n_layer: 2 });
const BEGIN: NewRun = { config: CONFIG, spec: SPEC, corpusHash: "00", committed: 0 };
const COMMIT: CommitRecord = { step: 0, gen: 1, cut: 1, hashes: ["a"], gradNormSq: 2 };
/** Only a hang reaches it. */
const PATIENCE_MS = 30_000;

const VIEW: View = {
  ...{ gen: 1, cut: 1, baseStep: 0, schedule: "dynamic", codecForward: "raw32", codecBackward: "raw32" },
  stages: [{
    ...{ index: 0, firstLayer: 0, endLayer: 2, embed: true, head: true, inflight: 1 },
    replicas: [{ peer: "deno-1", microBatches: [0] }, { peer: "unknown", microBatches: [] }],
  }],
};

/** A shell over a real log whose core says what it is told to, and one peer that writes down what it hears. */
class Bench implements AsyncDisposable {
  readonly lines: CoordinatorEventLine[] = [];
  readonly heard: CoordinatorMessage[] = [];
  /** What the core was told, with its time. */
  readonly taken: { event: ShellEvent; at: number }[] = [];
  readonly log: RunLog;
  readonly shell: Shell;
  full = false;
  /** Effects by type of event; ticks give none. */
  effects: Record<string, ShellEffect[]> = {};

  constructor(readonly folder: string, log?: RunLog) {
    this.log = log ?? RunLog.create(folder, BEGIN, {
      openFile: (path, how) => {
        const file = Deno.openSync(path, how);
        return {
          writeSync: (bytes) => {
            if (this.full) throw Object.assign(new Error("No space left on device"), { code: "ENOSPC" });
            return file.writeSync(bytes);
          },
          syncDataSync: () => file.syncDataSync(),
          truncateSync: (length) => file.truncateSync(length),
          utimeSync: (atime, mtime) => file.utimeSync(atime, mtime),
          close: () => file.close(),
        };
      },
    });
    const corpus = { vocab: ["a"], tokens: Uint8Array.of(0), bytesPerToken: 1 as const, hash: "00" };
    this.shell = new Shell({
      ...{ config: CONFIG, spec: SPEC, log: new EventLog(folder), runLog: this.log, outDir: folder },
      corpus: { ...corpus, decode: () => "" },
      onEvent: (line) => this.lines.push(line),
      sample: () => Promise.resolve(""),
    });
    this.shell.core.step = (event, at) => {
      if (event.type !== "tick") this.taken.push({ event, at });
      return [...this.effects[event.type] ?? []] as ReturnType<Shell["core"]["step"]>;
    };
    this.shell.connections.set("deno-1", {
      send: (bytes) => this.#hear(bytes),
      close: () => {},
      part: () => {},
    });
    this.shell.identities.set("deno-1", { ticket: "t", incarnation: 1 });
  }

  #hear(bytes: Uint8Array): void {
    const tagged = readTagged(bytes);
    assert.ok(tagged.ok);
    const message = decodeCoordinatorMessage(tagged.value.bytes);
    assert.ok(message.ok);
    if (message.value.type !== "status") this.heard.push(message.value);
  }

  get committed(): number {
    return lookAtRunLog(this.folder)!.run.committed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.shell.close("the test is over");
    await Deno.remove(this.folder, { recursive: true });
  }
}

async function openBench(): Promise<Bench> {
  return new Bench(join(await Deno.makeTempDir({ prefix: "shoal-shell-" })));
}

async function until(what: string, holds: () => boolean): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!holds()) {
    if (performance.now() > deadline) assert.fail(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

const STOP = { type: "admin", action: "stop" } as const;
const SAY_COMMIT: ShellEffect = {
  do: "send",
  peer: "deno-1",
  message: { type: "commit", cut: 1, step: 0, gradNormSq: 2, hashes: ["a"] },
};

Deno.test("shell: a commit is on disk before anybody hears of it", async () => {
  await using bench = await openBench();
  let onDisk = -1;
  bench.shell.connections.set("deno-1", {
    send: () => onDisk = bench.committed,
    close: () => {},
    part: () => {},
  });
  bench.effects["admin"] = [{ do: "persist", record: { kind: "commit", ...COMMIT } }, SAY_COMMIT];
  bench.shell.feed(STOP);
  assert.equal(onDisk, 1);
  assert.deepEqual(lookAtRunLog(bench.folder)!.run.commit, COMMIT);
});

Deno.test("shell: a view is kept with the tickets of its members and told with the run's epoch", async () => {
  await using bench = await openBench();
  const about = { runtime: "deno" as const, adapter: "a", engine: "e", name: "n" };
  const measures = { blockMs: 3, memoryBytes: 9, gpuOptimizer: false };
  bench.shell.core.state.peers["deno-1"] = {
    ...{ id: "deno-1", ...about, ...measures, joinedAt: 0, heardAt: 0, paused: false, leaving: false },
    ...{ hidden: false, stepMs: 0, bytesUp: 0, bytesDown: 0, direct: 0, relayed: 0 },
    ...{ recomputed: 0, recoveryBytes: 0, retainedBytes: 0, fenced: 0, snapshotBytes: 0, snapshotSpared: 0 },
  };
  bench.effects["admin"] = [
    { do: "persist", record: { kind: "view", view: VIEW } },
    { do: "send", peer: "deno-1", message: { type: "view", view: VIEW, source: null } },
  ];
  bench.shell.feed(STOP);
  const { run } = lookAtRunLog(bench.folder)!;
  assert.deepEqual([run.gen, run.view], [1, VIEW]);
  assert.deepEqual(run.peers, [{ id: "deno-1", ...about, ...measures, ticket: "t", incarnation: 1 }]);
  assert.deepEqual(bench.heard, [{ type: "view", view: VIEW, source: null, epoch: run.epoch }]);
});

Deno.test("shell: on a full disk the run stands still, says why, and goes on by itself with nothing lost", async () => {
  await using bench = await openBench();
  bench.effects["admin"] = [{ do: "persist", record: { kind: "commit", ...COMMIT } }, SAY_COMMIT];
  bench.effects["gone"] = [{ do: "send", peer: "deno-1", message: { type: "done", reason: "later" } }];
  bench.full = true;
  bench.shell.feed(STOP);
  const before = Date.now();
  bench.shell.feed({ type: "gone", peer: "x", reason: "" });
  const after = Date.now();
  const { state, reason } = bench.shell.status();
  assert.equal(state, "paused");
  assert.match(reason, /cannot be written.*No space left.*free some space/);
  await until("a second attempt", () => bench.taken.length === 1 && Date.now() - before > 1_200);
  assert.deepEqual([bench.heard, bench.committed], [[], 0], "something was told before it was durable");
  assert.deepEqual(bench.lines, [{ event: "state", state: "paused", reason }]);
  bench.full = false;
  await until("the commit", () => bench.heard.length === 2);
  assert.deepEqual(bench.heard.map((message) => message.type), ["commit", "done"]);
  assert.equal(bench.committed, 1);
  assert.equal(bench.taken.length, 2);
  const { at } = bench.taken[1]!;
  assert.ok(before <= at && at <= after, "the time of an event is when it happened, not when it was taken");
  const { status: core, reason: coreReason } = bench.shell.core.state;
  assert.deepEqual(bench.lines.at(-1), { event: "state", state: core, reason: coreReason });
  assert.equal(bench.shell.status().state, core);
});

Deno.test("shell: a run that goes back begins another epoch, one that is done is ended in its log", async () => {
  await using bench = await openBench();
  const { epoch } = bench.log.run;
  bench.log.appendView(VIEW, []);
  for (const step of [0, 1, 2]) bench.log.appendCommit({ ...COMMIT, step });
  bench.effects["admin"] = [{ do: "report", line: { event: "rollback", step: 2, steps_redone: 1 } }];
  bench.shell.feed(STOP);
  const { run } = lookAtRunLog(bench.folder)!;
  assert.deepEqual([run.committed, run.view], [2, null]);
  assert.notEqual(run.epoch, epoch);
  assert.equal(bench.shell.epoch, run.epoch);
  const losses = { "train/loss": 1, "val/loss": 1 };
  const line = { event: "done" as const, step: 9, ...losses, checkpoint: "c", sample: "" };
  bench.effects["admin"] = [{ do: "report", line }];
  bench.shell.feed(STOP);
  assert.deepEqual(lookAtRunLog(bench.folder)!.run.ended, { step: 9, checkpoint: "c" });
});

Deno.test("shell: a run that starts behind its log has another epoch, one that does not keeps it", async () => {
  for (const commits of [0, 3]) {
    const folder = await Deno.makeTempDir({ prefix: "shoal-shell-" });
    const before = RunLog.create(folder, BEGIN);
    for (let step = 0; step < commits; step++) before.appendCommit({ ...COMMIT, step });
    const { epoch } = before.run;
    before.close();
    await using bench = new Bench(folder, RunLog.reopen(folder));
    assert.equal(bench.shell.epoch === epoch, commits === 0);
    assert.equal(bench.committed, 0);
  }
});

Deno.test("shell: an event log without room ends nothing, and the gap is told when there is room again", async () => {
  await using bench = await openBench();
  const { log } = bench.shell.options;
  const append = log.append.bind(log);
  const noted: string[] = [];
  log.append = () => {
    throw new ShoalError("storage-full", "no room");
  };
  bench.effects["admin"] = [{ do: "log", kind: "k", text: "lost" }, SAY_COMMIT];
  bench.shell.feed(STOP);
  bench.shell.feed(STOP);
  assert.equal(bench.heard.length, 2);
  log.append = (at, event) => {
    noted.push(event.text);
    append(at, event);
  };
  bench.shell.feed(STOP);
  assert.deepEqual(noted, ["lost", "2 lines could not be written"]);
});

Deno.test("shell: without a log it works as before, and numbers peers by itself", async () => {
  await using site = await openSite();
  assert.deepEqual([site.shell.takeId(), site.shell.takeId(), site.shell.epoch], [1, 2, "none"]);
  assert.equal(site.shell.regathering, false);
});
