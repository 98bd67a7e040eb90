// Saved states of runs: found again by run, never another's, deleted if damaged, and never in the way of training.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { MemoryFolder, type StoreFolder } from "./folder.ts";
import { openSavedStates, type SavedState, type SavedStates, type SavedStatesEvent } from "./saved_states.ts";
import { openStore } from "./store.ts";

const BYTES_MAX = 10_000;

function state(change: Partial<SavedState> = {}): SavedState {
  const file = Uint8Array.from({ length: 50 }, (_, i) => i);
  return {
    run: "run one / é",
    firstLayer: 0,
    endLayer: 2,
    step: 20,
    stateHash: "ab".repeat(16),
    file,
    ...change,
  };
}

async function opened(folder: StoreFolder): Promise<{ saved: SavedStates; events: SavedStatesEvent[] }> {
  const events: SavedStatesEvent[] = [];
  const options = { bytesMax: BYTES_MAX, onEvent: (event: SavedStatesEvent) => void events.push(event) };
  return { saved: await openSavedStates(() => Promise.resolve(folder), options), events };
}

Deno.test("saved states: a run finds its own, the newest of each stage", async () => {
  const folder = new MemoryFolder();
  const { saved } = await opened(folder);
  const [newer, other] = [state({ step: 40 }), state({ firstLayer: 2, endLayer: 4 })];
  for (const it of [state(), other, newer, state({ run: "run two" })]) assert.ok(await saved.save(it));
  await saved.close();
  const { saved: again, events } = await opened(folder);
  assert.equal(again.durable, true);
  assert.deepEqual(await again.load("run one / é"), [other, newer]);
  assert.deepEqual(await again.load("run"), []);
  await again.forget("run one / é");
  assert.deepEqual(await again.load("run one / é"), []);
  assert.deepEqual(await again.load("run two"), [state({ run: "run two" })]);
  assert.deepEqual(events, []);
});

Deno.test("saved states: one that is damaged is deleted and reported, the one before is used", async () => {
  const folder = new MemoryFolder();
  const { saved, events } = await opened(folder);
  await saved.save(state());
  await saved.save(state({ step: 40 }));
  folder.files.get("data-1")![60]! ^= 1;
  assert.deepEqual(await saved.load("run one / é"), [state()]);
  folder.files.get("data-0")![60]! ^= 1;
  assert.deepEqual(await saved.load("run one / é"), []);
  assert.deepEqual(events.map(({ what }) => what), ["damaged", "damaged"]);
  assert.ok(![...folder.files.keys()].some((file) => file.startsWith("data-")));
});

Deno.test("saved states: what has a sound hash but another form is deleted", async () => {
  const folder = new MemoryFolder();
  const { saved, events } = await opened(folder);
  await saved.save(state());
  const store = await openStore(folder, { bytesMax: BYTES_MAX });
  const name = (await store.list())[0]!.name;
  const whole = (await store.get(name))!;
  const described = (text: string) => {
    const meta = new TextEncoder().encode(text);
    return Uint8Array.of(meta.length & 0xff, meta.length >> 8, 0, 0, ...meta);
  };
  const { file: _, ...meta } = state();
  const json = (change: object) => JSON.stringify({ format: "shoal-state-1", ...meta, ...change });
  assert.ok(new TextDecoder().decode(whole).includes(json({})));
  const contents = [
    new Uint8Array(3),
    Uint8Array.of(0xff, 0xff, 0xff, 0x7f, 1),
    whole.subarray(0, 20),
    described("{"),
    described("null"),
    described(json({ format: "shoal-state-2" })),
    described(json({}) + " ".repeat(5_000)),
    described(json({ step: -1 })),
    described(json({ step: "20" })),
    described(json({ stateHash: 5 })),
    described(json({ run: "run two" })),
    described(json({ endLayer: 3 })),
  ];
  for (const bytes of contents) {
    await (await openStore(folder, { bytesMax: BYTES_MAX })).put(name, bytes);
    const { saved: again, events: told } = await opened(folder);
    assert.deepEqual(await again.load("run one / é"), []);
    assert.deepEqual(told.map(({ what }) => what), ["damaged"]);
    assert.deepEqual(await (await openStore(folder, { bytesMax: BYTES_MAX })).list(), []);
  }
  assert.deepEqual(events, []);
});

Deno.test("saved states: where nothing may be kept the peer goes on in memory and says why", async () => {
  const events: SavedStatesEvent[] = [];
  const refuse = () => Promise.reject(new ShoalError("storage-denied", "private window"));
  const options = { bytesMax: BYTES_MAX, onEvent: (event: SavedStatesEvent) => void events.push(event) };
  const saved = await openSavedStates(refuse, options);
  assert.equal(saved.durable, false);
  assert.ok(await saved.save(state()));
  assert.deepEqual(await saved.load(state().run), [state()]);
  assert.deepEqual(events.map((it) => it.what === "failed" && it.error.code), ["storage-denied"]);
});

Deno.test("saved states: a full or broken disk is reported, never thrown", async () => {
  const folder = new MemoryFolder();
  const { saved, events } = await opened(folder);
  assert.ok(await saved.save(state()));
  assert.equal(await saved.save(state({ file: new Uint8Array(BYTES_MAX) })), false);
  folder.write = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  assert.equal(await saved.save(state({ step: 40 })), false);
  assert.deepEqual(await saved.load(state().run), [state()]);
  folder.read = () => Promise.reject(new Error("input/output error"));
  assert.deepEqual(await saved.load(state().run), []);
  const codes = events.map((it) => it.what === "failed" && it.error.code);
  assert.deepEqual(codes, ["storage-full", "storage-full", "storage-denied"]);
});
