// The shell of a peer's snapshots: frames that it sends, states that it saves and finds again on disk, and what a damaged disk
// or a coordinator that takes nothing come to. No sockets, a clock set by hand.
import assert from "node:assert/strict";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";
import { ManualClock } from "./net/clock.ts";
import { PeerSnapshots, runKey } from "./snapshots.ts";
import { MemoryFolder } from "./store/folder.ts";
import { openSavedStates, type SavedStates } from "./store/saved_states.ts";
import type { PeerMessage, Welcome } from "./wire/control.ts";
import { decodeFrame } from "./wire/frame.ts";
import type { StagePlan } from "./wire/run.ts";

const CONFIG = readConfig({ n_layer: 2, n_embd: 8, n_head: 2, n_kv_head: 1 });
const PLAN: StagePlan = {
  ...{ index: 0, firstLayer: 0, endLayer: 1, embed: true, head: false, inflight: 1, replicas: [] },
};
const FILE = Uint8Array.from({ length: 500 }, (_, i) => i);

function welcomeOf(peer: string): Welcome {
  return {
    ...{ type: "welcome", peer, incarnation: 7, config: CONFIG, spec: specOf(CONFIG, 7), ticket: "t" },
    ...{ heartbeatMs: 250, epoch: "e", committed: 0, resumed: false },
    corpus: { tokens: 9, bytesPerToken: 1, hash: "c" },
  };
}

interface Bench {
  snapshots: PeerSnapshots;
  said: PeerMessage[];
  sent: { to: string; bytes: Uint8Array; priority: number }[];
  linked: string[];
  uploads: number[];
  clock: ManualClock;
}

function benchOf(states: SavedStates | null, { peer = "h", takes = true } = {}): Bench {
  const clock = new ManualClock();
  const bench: Omit<Bench, "snapshots"> = { said: [], sent: [], linked: [], uploads: [], clock };
  const snapshots = new PeerSnapshots({
    ...{ welcome: welcomeOf(peer), memoryBytes: 80_000, states, clock },
    host: {
      connect: (other) => void bench.linked.push(other),
      send: (to, bytes, priority) => void bench.sent.push({ to, bytes, priority }),
    },
    say: (message) => void bench.said.push(message),
    upload: ({ step }) => {
      bench.uploads.push(step);
      return Promise.resolve(takes);
    },
  });
  return { ...bench, snapshots };
}

async function exportAt(
  bench: Bench,
  step: number,
  keepers: { peer: string; index: number }[] = [],
): Promise<void> {
  const where = { cut: 1, step, stage: 0 };
  bench.snapshots.order({ type: "snapshot-out", ...where, k: 1, keepers });
  const file = { bytes: FILE, hash: `state ${step}` };
  assert.equal(bench.snapshots.take(where, { file, plan: PLAN }), true);
  assert.equal(bench.snapshots.take(where, { file, plan: PLAN }), false, "the next export is an upload");
  await Promise.resolve();
}

function own(bench: Bench, step: number): void {
  bench.snapshots.order({ type: "keep", order: { order: "own", firstLayer: 0, endLayer: 1, step } });
}

async function saved(folder: MemoryFolder): Promise<SavedStates> {
  return await openSavedStates(() => Promise.resolve(folder), { bytesMax: 100_000 });
}

/** Saving goes on beside; each write of a memory folder takes a few turns of the loop. */
function settle(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 0));
}

Deno.test("peer snapshots: shards go out as frames behind all others, and wait for the link", async () => {
  const bench = benchOf(null);
  await exportAt(bench, 10, [{ peer: "k", index: 0 }]);
  assert.deepEqual(bench.linked, ["k"]);
  bench.clock.advance(1_000);
  assert.equal(bench.sent.length, 0);
  bench.snapshots.link("k", true);
  bench.clock.advance(100);
  const [{ to, bytes, priority }] = bench.sent as [Bench["sent"][0]];
  const frame = decodeFrame(bytes);
  assert.ok(frame.ok && to === "k" && priority === 2);
  const { kind, codec, incarnation } = frame.value.header;
  assert.deepEqual([kind, codec, incarnation], ["snapshot", "bytes", 7]);
  bench.snapshots.close();
  const before = bench.sent.length;
  bench.clock.advance(60_000);
  assert.equal(bench.sent.length, before, "a session that has ended sends nothing");
});

Deno.test("peer snapshots: the newest restorable state is saved, and offered by the next peer of this computer", async () => {
  const folder = new MemoryFolder();
  const first = benchOf(await saved(folder));
  await exportAt(first, 10);
  await exportAt(first, 20);
  own(first, 20);
  await settle();
  const next = benchOf(await saved(folder), { peer: "h2" });
  await next.snapshots.offerSaved();
  const states = [{ firstLayer: 0, endLayer: 1, step: 20, hash: "state 20" }];
  assert.deepEqual(next.said, [{ type: "offer", states }]);
  const order = { cut: 5, step: 20, stage: 0, firstLayer: 0, endLayer: 1, hash: "state 20" };
  next.snapshots.order({ type: "restore", ...order, snapshot: null, keepers: [] });
  assert.deepEqual(next.uploads, [20]);
});

Deno.test("peer snapshots: another run's states are left alone, a damaged one is deleted and told", async () => {
  const folder = new MemoryFolder();
  const bench = benchOf(await saved(folder));
  await exportAt(bench, 10);
  own(bench, 10);
  await settle();
  const other = { ...welcomeOf("x"), config: { ...CONFIG, seed: 1 } };
  assert.notEqual(runKey(other), runKey(welcomeOf("x")));
  assert.deepEqual(await (await saved(folder)).load(runKey(other)), []);
  for (const [name, bytes] of folder.files) if (name.startsWith("data-")) bytes[bytes.length - 1]! ^= 1;
  const events: string[] = [];
  const options = { bytesMax: 100_000, onEvent: ({ what }: { what: string }) => void events.push(what) };
  const states = await openSavedStates(() => Promise.resolve(folder), options);
  const next = benchOf(states);
  await next.snapshots.offerSaved();
  assert.deepEqual(next.said, []);
  assert.deepEqual(events, ["damaged"]);
});

Deno.test("peer snapshots: a coordinator that does not take the state hears that it was not brought", async () => {
  const bench = benchOf(null, { takes: false });
  await exportAt(bench, 10);
  const order = { cut: 1, step: 10, stage: 0, firstLayer: 0, endLayer: 1, hash: "state 10" };
  bench.snapshots.order({ type: "restore", ...order, snapshot: null, keepers: [] });
  await settle();
  assert.equal(bench.said.at(-1)?.type, "restore-failed");
});
