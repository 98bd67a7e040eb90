// The acceptance suite of a store over any folder: every implementation passes every case, in Deno, on a page and in a worker
// (nothing here is bound to one of them). A case throws an Error that says what broke. No crashes: see store_test.ts.
import { ShoalError } from "../wire/errors.ts";
import type { StoreFolder } from "./folder.ts";
import { openStore, type StateStore, type StoreEvent } from "./store.ts";

/** An empty folder, and the same one opened again as after a restart. */
export interface Bed {
  folder: StoreFolder;
  reopen(): Promise<StoreFolder>;
}

export interface StoreCase {
  name: string;
  run(bed: Bed): Promise<void>;
}

const ROOM = 8 << 20;

export const STORE_CASES: readonly StoreCase[] = [
  { name: "gives back what was put, of any size, newest first", run: roundTrip },
  { name: "keeps everything over a restart", run: restart },
  { name: "lists by the time of writing and deletes", run: listing },
  { name: "uses the older copy if the newest is damaged, and says so", run: olderCopy },
  { name: "gives nothing if every copy is damaged, and forgets them", run: allDamaged },
  { name: "survives a damaged list, and two", run: damagedList },
  { name: "removes what no list names", run: orphans },
  { name: "makes room within its limit: older copies first, then the oldest names", run: room },
  { name: "refuses what is larger than its limit and stays as it was", run: tooLarge },
  { name: "keeps calls in order that were made at once", run: concurrent },
];

/** Runs one case; `open` gives an empty folder first and the same one after. */
export async function runStoreCase(storeCase: StoreCase, open: () => Promise<StoreFolder>): Promise<void> {
  let folder = await open();
  const bed: Bed = {
    get folder() {
      return folder;
    },
    reopen: async () => {
      await folder.close();
      folder = await open();
      return folder;
    },
  };
  try {
    for (const file of await folder.list()) await folder.remove(file);
    await storeCase.run(bed);
  } finally {
    await folder.close();
  }
}

function content(size: number, salt: number): Uint8Array {
  const bytes = new Uint8Array(size);
  for (let i = 0; i < size; i++) bytes[i] = (i * 31 + (i >> 8) + salt) & 0xff;
  return bytes;
}

function check(condition: boolean, what: string): void {
  if (!condition) throw new Error(what);
}

function same(actual: unknown, expected: unknown, what: string): void {
  const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)];
  check(a === b, `${what}: ${a} instead of ${b}`);
}

async function holds(store: StateStore, name: string, expected: Uint8Array | null): Promise<void> {
  const actual = await store.get(name);
  if (actual === null || expected === null) {
    return check(actual === expected, `${name} is ${actual?.length ?? "missing"}`);
  }
  const equal = actual.length === expected.length && actual.every((byte, i) => byte === expected[i]);
  check(equal, `${name} is not what was put`);
}

async function opened(
  folder: StoreFolder,
  bytesMax = ROOM,
): Promise<{ store: StateStore; events: StoreEvent[] }> {
  const events: StoreEvent[] = [];
  return { store: await openStore(folder, { bytesMax, onEvent: (event) => events.push(event) }), events };
}

function told(events: readonly StoreEvent[]): string[] {
  return events.map(({ what, name }) => `${what} ${name}`.trim());
}

/** The content file that the newest put has written. */
async function newestFile(folder: StoreFolder): Promise<string> {
  const numbers = (await folder.list()).filter((it) => it.startsWith("data-")).map((it) =>
    Number(it.slice(5))
  );
  return `data-${Math.max(...numbers)}`;
}

async function flip(folder: StoreFolder, file: string): Promise<void> {
  const bytes = (await folder.read(file, ROOM))!.slice();
  bytes[bytes.length >> 1]! ^= 1;
  await folder.write(file, bytes);
}

async function roundTrip({ folder }: Bed): Promise<void> {
  const { store, events } = await opened(folder);
  await holds(store, "absent", null);
  for (const [i, size] of [0, 1, 3, 4_096, 1_500_001].entries()) {
    await store.put("x.0-2", content(size, i));
    await holds(store, "x.0-2", content(size, i));
  }
  same(store.bytes, 4_096 + 1_500_001, "bytes of the newest content and the one before");
  same((await folder.list()).length, 4, "files");
  same(events, [], "events");
}

async function restart({ folder, reopen }: Bed): Promise<void> {
  const before = (await opened(folder)).store;
  await before.put("a", content(1_000, 1));
  await before.put("b", content(2_000, 2));
  await before.put("a", content(3_000, 3));
  const { store, events } = await opened(await reopen());
  await holds(store, "a", content(3_000, 3));
  await holds(store, "b", content(2_000, 2));
  await store.put("b", content(10, 4));
  const again = await opened(await reopen());
  await holds(again.store, "b", content(10, 4));
  same([...events, ...again.events], [], "events");
}

async function listing({ folder, reopen }: Bed): Promise<void> {
  const { store } = await opened(folder);
  for (const [name, size] of [["a", 1], ["b", 2], ["c", 3], ["a", 4]] as const) {
    await store.put(name, content(size, 0));
  }
  const expected = [{ name: "b", bytes: 2 }, { name: "c", bytes: 3 }, { name: "a", bytes: 4 }];
  same(await store.list(), expected, "list");
  await store.delete("c");
  await store.delete("absent");
  await holds(store, "c", null);
  same((await folder.list()).length, 5, "files");
  same(await (await opened(await reopen())).store.list(), [expected[0], expected[2]], "list after a restart");
}

async function olderCopy({ folder, reopen }: Bed): Promise<void> {
  const damages: ((folder: StoreFolder, file: string) => Promise<void>)[] = [
    flip,
    (folder, file) => folder.write(file, content(500, 2)),
    (folder, file) => folder.write(file, content(1_001, 2)),
    (folder, file) => folder.write(file, new Uint8Array(0)),
    (folder, file) => folder.remove(file),
  ];
  let current = folder;
  for (const damage of damages) {
    const { store } = await opened(current);
    await store.put("a", content(900, 1));
    await store.put("a", content(1_000, 2));
    await damage(current, await newestFile(current));
    current = await reopen();
    const { store: after, events } = await opened(current);
    await holds(after, "a", content(900, 1));
    await holds(after, "a", content(900, 1));
    same(told(events), ["damaged a"], "events");
    same(after.bytes, 900, "bytes");
  }
}

async function allDamaged({ folder, reopen }: Bed): Promise<void> {
  const { store, events } = await opened(folder);
  await store.put("b", content(7, 0));
  await store.put("a", content(900, 1));
  await flip(folder, await newestFile(folder));
  await store.put("a", content(1_000, 2));
  await flip(folder, await newestFile(folder));
  await holds(store, "a", null);
  same(told(events), ["damaged a", "damaged a"], "events");
  same(await store.list(), [{ name: "b", bytes: 7 }], "list");
  await store.put("a", content(5, 3));
  await holds((await opened(await reopen())).store, "a", content(5, 3));
}

async function damagedList({ folder, reopen }: Bed): Promise<void> {
  const { store } = await opened(folder);
  // The third change lies in the first list, so the second one is what is left.
  await store.put("a", content(10, 1));
  await store.put("b", content(20, 2));
  await store.put("b", content(30, 3));
  await flip(folder, "list-a");
  const { store: after, events } = await opened(await reopen());
  same(told(events), ["list-damaged"], "events");
  await holds(after, "a", content(10, 1));
  await holds(after, "b", content(20, 2));
  await after.put("b", content(40, 4));
  const last = await reopen();
  await holds((await opened(last)).store, "b", content(40, 4));
  await last.write("list-a", content(100, 0));
  await last.write("list-b", new Uint8Array(0));
  const { store: empty } = await opened(await reopen());
  same(await empty.list(), [], "list");
  await empty.put("a", content(3, 3));
  await holds((await opened(await reopen())).store, "a", content(3, 3));
}

async function orphans({ folder, reopen }: Bed): Promise<void> {
  const { store } = await opened(folder);
  await store.put("a", content(10, 1));
  await folder.write("data-77", content(5, 5));
  const again = await reopen();
  await holds((await opened(again)).store, "a", content(10, 1));
  same((await again.list()).toSorted(), ["data-0", "list-a"], "files");
}

async function room({ folder }: Bed): Promise<void> {
  const { store, events } = await opened(folder, 1_000);
  await store.put("a", content(300, 1));
  await store.put("b", content(200, 2));
  await store.put("a", content(300, 3));
  same(store.bytes, 800, "bytes");
  await store.put("c", content(300, 4));
  same(store.bytes, 800, "bytes without the older copy of a");
  await store.put("d", content(400, 5));
  same(told(events), ["evicted b"], "events");
  same((await store.list()).map(({ name }) => name), ["a", "c", "d"], "names");
  await holds(store, "d", content(400, 5));
  same(store.bytes, 1_000, "bytes");
  await store.put("c", content(1_000, 6));
  same(told(events), ["evicted b", "evicted a", "evicted d"], "events");
  await holds(store, "c", content(1_000, 6));
}

async function tooLarge({ folder }: Bed): Promise<void> {
  const { store } = await opened(folder, 1_000);
  await store.put("a", content(900, 1));
  try {
    await store.put("a", content(1_001, 2));
  } catch (error) {
    check(error instanceof ShoalError && error.code === "storage-full", `refused with ${error}`);
    return await holds(store, "a", content(900, 1));
  }
  throw new Error("took more than its limit");
}

async function concurrent({ folder, reopen }: Bed): Promise<void> {
  const { store } = await opened(folder);
  const puts = Array.from({ length: 8 }, (_, i) => store.put(`n${i % 3}`, content(100 + i, i)));
  const [last] = await Promise.all([store.get("n1"), ...puts]);
  same(last?.length, 107, "a get after the puts");
  const { store: after, events } = await opened(await reopen());
  for (const i of [5, 6, 7]) await holds(after, `n${i % 3}`, content(100 + i, i));
  same(events, [], "events");
}
