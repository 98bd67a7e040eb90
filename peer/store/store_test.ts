// The store over memory and over Deno's files: the acceptance suite, a crash at every step with every degree of tearing, a disk
// that fails at every step, lists that no store has written, locks, full and forbidden disks.
import assert from "node:assert/strict";
import { join } from "node:path";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import { MemoryFolder, type StoreFolder } from "./folder.ts";
import { openDenoFolder, SLOTS_MAX } from "./folder_deno.ts";
import { decodeManifest, encodeManifest, type Manifest, NAMES_MAX } from "./manifest.ts";
import { openStore, type StateStore, storageError } from "./store.ts";
import { runStoreCase, STORE_CASES } from "./store_suite.ts";

const OPTIONS = { bytesMax: 10_000 };

async function inTemporaryFolder(run: (root: string) => Promise<void>): Promise<void> {
  const root = await Deno.makeTempDir({ prefix: "shoal-store-" });
  try {
    await run(root);
  } finally {
    await Deno.remove(root, { recursive: true });
  }
}

for (const storeCase of STORE_CASES) {
  Deno.test(`store in memory: ${storeCase.name}`, async () => {
    const folder = new MemoryFolder();
    await runStoreCase(storeCase, () => Promise.resolve(folder));
  });
  Deno.test(`store on disk: ${storeCase.name}`, () => {
    return inTemporaryFolder((root) => runStoreCase(storeCase, () => openDenoFolder(root)));
  });
}

type Failure = "crash" | "error";

/** Lets `steps` changes pass; the next one is done in part, `share` of it, and then fails: for good after a crash. */
class FailingFolder extends MemoryFolder {
  #left: number;
  readonly #failure: Failure;
  readonly #share: number;
  failed = 0;

  constructor(steps: number, { failure, share }: { failure: Failure; share: number }) {
    super();
    this.#left = steps;
    this.#failure = failure;
    this.#share = share;
  }

  override write(file: string, bytes: Uint8Array): Promise<void> {
    if (this.#fails()) {
      // Share 0 never reached the disk, not even the new length.
      if (this.#share > 0 && this.failed === 1) {
        this.files.set(file, bytes.slice(0, Math.floor(bytes.length * this.#share)));
      }
      return Promise.reject(Object.assign(new Error("disk full"), { code: "ENOSPC" }));
    }
    return super.write(file, bytes);
  }

  override remove(file: string): Promise<void> {
    if (!this.#fails()) return super.remove(file);
    if (this.#share === 1 && this.failed === 1) this.files.delete(file);
    return Promise.reject(new Error("gone"));
  }

  #fails(): boolean {
    if (this.failed > 0 && this.#failure === "crash") return true;
    if (this.#left-- !== 0) return false;
    this.failed++;
    return true;
  }
}

/** What was promised: the last text of each name whose put returned. */
type Book = Map<string, string | null>;

const SCRIPT: [name: string, text: string | null][] = [
  ["a", "a1"],
  ["b", "b1 is longer"],
  ["a", "a2"],
  ["a", "a3"],
  ["b", null],
  ["b", "b2"],
  ["a", "a4"],
];

/** Does the script and goes on after failures, or stops at the first and gives what was under way then. */
async function perform(
  store: StateStore,
  book: Book,
  stop: boolean,
): Promise<[string, string | null] | null> {
  for (const [name, text] of SCRIPT) {
    try {
      if (text === null) await store.delete(name);
      else await store.put(name, new TextEncoder().encode(text));
      book.set(name, text);
    } catch (error) {
      assert.ok(error instanceof ShoalError);
      assert.equal(error.code, "storage-full");
      if (stop) return [name, text];
    }
  }
  return null;
}

async function texts(folder: StoreFolder): Promise<Map<string, string | null>> {
  const store = await openStore(folder, OPTIONS);
  const found = new Map<string, string | null>();
  for (const name of ["a", "b"]) {
    const bytes = await store.get(name);
    found.set(name, bytes === null ? null : new TextDecoder().decode(bytes));
  }
  return found;
}

function contents(folder: MemoryFolder): string[] {
  return [...folder.files.keys()].filter((file) => file.startsWith("data-"));
}

Deno.test("store: a crash at any step leaves the old content or the new one, whole", async () => {
  let crashes = 0;
  for (const share of [0, 0.5, 1]) {
    for (let steps = 0;; steps++) {
      const folder = new FailingFolder(steps, { failure: "crash", share });
      const book: Book = new Map();
      const underWay = await perform(await openStore(folder, OPTIONS), book, true);
      if (folder.failed === 0) break;
      crashes++;
      const disk = new MemoryFolder();
      for (const [file, bytes] of folder.files) disk.files.set(file, bytes);
      const found = await texts(disk);
      for (const [name, text] of found) {
        const allowed = [book.get(name) ?? null, ...underWay?.[0] === name ? [underWay[1]] : []];
        assert.ok(allowed.includes(text), `share ${share}, step ${steps}: ${name} is ${text}`);
      }
      assert.deepEqual(await texts(disk), found);
    }
  }
  assert.ok(crashes >= 3 * 2 * SCRIPT.length, `${crashes} crashes`);
});

Deno.test("store: a disk that fails once costs one change and nothing else", async () => {
  for (const share of [0, 0.5, 1]) {
    for (let steps = 0;; steps++) {
      const folder = new FailingFolder(steps, { failure: "error", share });
      const book: Book = new Map();
      await perform(await openStore(folder, OPTIONS), book, false);
      if (folder.failed === 0) break;
      assert.deepEqual(Object.fromEntries(await texts(folder)), Object.fromEntries(book), `step ${steps}`);
      assert.ok(contents(folder).length <= 4, `share ${share}, step ${steps}: ${contents(folder)} remain`);
    }
  }
});

Deno.test("store: a failure right before a restart loses nothing that was promised", async () => {
  for (const share of [0, 0.5, 1]) {
    for (let steps = 0;; steps++) {
      const folder = new FailingFolder(steps, { failure: "error", share });
      const store = await openStore(folder, { bytesMax: 12 });
      const promised = new Map<string, string>();
      for (const text of ["one", "two", "three", "seven", "eleven ...", "twelve ....."]) {
        const before = contents(folder);
        const put = store.put("a", new TextEncoder().encode(text));
        if (!await put.then(() => true, () => false)) {
          assert.deepEqual(contents(folder), before, `share ${share}, step ${steps}: room is lost`);
          break;
        }
        promised.set("a", text);
      }
      if (folder.failed === 0) break;
      const reopened = await openStore(folder, { bytesMax: 12 });
      const bytes = await reopened.get("a");
      const text = bytes === null ? undefined : new TextDecoder().decode(bytes);
      assert.equal(text, promised.get("a"), `share ${share}, step ${steps}`);
    }
  }
});

Deno.test("store: a list that failed to be written but lies there whole never names another put's content", async () => {
  const folder = new MemoryFolder();
  const store = await openStore(folder, { bytesMax: 10 });
  const put = (text: string) => store.put("a", new TextEncoder().encode(text));
  await put("one");
  const write = folder.write.bind(folder);
  folder.write = async (file, bytes) => {
    await write(file, bytes);
    if (file.startsWith("list-")) throw new Error("written, but who knows");
  };
  folder.remove = () => Promise.reject(new Error("not now"));
  await assert.rejects(put("second!!"));
  folder.write = (file, bytes) =>
    file.startsWith("list-") ? Promise.reject(new Error("crash")) : write(file, bytes);
  await assert.rejects(put("third"));
  const disk = new MemoryFolder();
  for (const [file, bytes] of folder.files) disk.files.set(file, bytes);
  const bytes = await (await openStore(disk, { bytesMax: 10 })).get("a");
  assert.equal(new TextDecoder().decode(bytes ?? undefined), "second!!");
});

Deno.test("store: names are limited too, the oldest goes", async () => {
  const evicted: string[] = [];
  const options = { bytesMax: 10_000, onEvent: ({ name }: { name: string }) => void evicted.push(name) };
  const store = await openStore(new MemoryFolder(), options);
  for (let i = 0; i < NAMES_MAX + 2; i++) await store.put(`n${i}`, Uint8Array.of(i));
  assert.equal((await store.list()).length, NAMES_MAX);
  assert.deepEqual(evicted, ["n0", "n1"]);
});

Deno.test("store: a list comes back as it was, and no other text is a list", () => {
  const hash = "0123456789abcdef0123456789abcdef";
  const manifest: Manifest = {
    ...{ seq: 7, next: 12 },
    entries: [{
      name: "x.0-2",
      copies: [{ file: "data-11", bytes: 5, hash }, { file: "data-3", bytes: 0, hash }],
    }],
  };
  const bytes = encodeManifest(manifest);
  assert.deepEqual(decodeManifest(bytes), { ok: true, value: manifest });
  for (let cut = 0; cut < bytes.length; cut++) assert.equal(decodeManifest(bytes.subarray(0, cut)).ok, false);
  fc.assert(
    fc.property(
      fc.nat({ max: bytes.length - 1 }),
      fc.integer({ min: 1, max: 255 }),
      fc.string(),
      (at, x, text) => {
        const changed = bytes.slice();
        changed[at]! ^= x;
        assert.equal(decodeManifest(changed).ok, false);
        assert.equal(decodeManifest(new TextEncoder().encode(text)).ok, false);
      },
    ),
    { seed: 61, numRuns: 300 },
  );
});

Deno.test("store: a list with a right hash but impossible fields is refused", () => {
  const copy = { file: "data-1", bytes: 1, hash: "0".repeat(32) };
  const entry = { name: "a", copies: [copy] };
  const good = { seq: 1, next: 2, entries: [entry] };
  const wrong: unknown[] = [
    { ...good, seq: -1 },
    { ...good, next: 1.5 },
    { ...good, entries: null },
    { ...good, entries: [null] },
    { ...good, entries: [{ ...entry, name: "../a" }] },
    { ...good, entries: [{ ...entry, copies: [] }] },
    { ...good, entries: [{ ...entry, copies: [copy, copy, copy] }] },
    { ...good, entries: [{ ...entry, copies: [{ ...copy, file: "list-a" }] }] },
    { ...good, entries: [{ ...entry, copies: [{ ...copy, bytes: "1" }] }] },
    { ...good, entries: [{ ...entry, copies: [{ ...copy, hash: "0" }] }] },
    { ...good, entries: new Array(257).fill(entry) },
  ];
  assert.ok(decodeManifest(encodeManifest(good)).ok);
  for (const it of wrong) {
    assert.equal(decodeManifest(encodeManifest(it as Manifest)).ok, false, JSON.stringify(it));
  }
});

Deno.test("store on disk: peers of one computer take a folder each, and the lock goes with the peer", () => {
  return inTemporaryFolder(async (root) => {
    const folders: StoreFolder[] = [];
    for (let i = 0; i < SLOTS_MAX; i++) folders.push(await openDenoFolder(root));
    for (const [i, folder] of folders.entries()) await folder.write("data-0", Uint8Array.of(i));
    await assert.rejects(openDenoFolder(root), (error: ShoalError) => error.code === "storage-denied");
    await folders[3]!.close();
    const again = await openDenoFolder(root);
    assert.deepEqual(await again.read("data-0", 9), Uint8Array.of(3));
    assert.deepEqual(await again.list(), ["data-0"]);
    for (const folder of [...folders.toSpliced(3, 1), again]) await folder.close();
  });
});

Deno.test("store on disk: a full disk is storage-full, and what was there stays", () => {
  return inTemporaryFolder(async (root) => {
    const folder = await openDenoFolder(root);
    const store = await openStore(folder, OPTIONS);
    await store.put("a", Uint8Array.of(1));
    // A device that is always full, in the place of the next content.
    await Deno.symlink("/dev/full", join(root, "slot-0", "data-1"));
    await assert.rejects(store.put("a", Uint8Array.of(2)), (error: ShoalError) => {
      assert.equal(error.code, "storage-full");
      return /No space left.*training goes on/.test(error.message);
    });
    assert.deepEqual(await store.get("a"), Uint8Array.of(1));
    await Deno.remove(join(root, "slot-0", "data-1")).catch(() => {});
    await store.put("a", Uint8Array.of(3));
    assert.deepEqual(await store.get("a"), Uint8Array.of(3));
    await store.close();
  });
});

Deno.test({
  name: "store on disk: without permission it is storage-denied",
  permissions: { read: true, write: false },
  fn: async () => {
    await assert.rejects(openDenoFolder("/tmp/shoal-forbidden"), (error: ShoalError) => {
      return error.code === "storage-denied" && /write access/.test(error.message);
    });
  },
});

Deno.test("store: what platforms call a failure has one of our codes", () => {
  const codes: [unknown, string][] = [
    [new DOMException("no", "QuotaExceededError"), "storage-full"],
    [Object.assign(new Error("no"), { code: "EDQUOT" }), "storage-full"],
    [new DOMException("no", "SecurityError"), "storage-denied"],
    [new DOMException("no", "NotAllowedError"), "storage-denied"],
    [new Deno.errors.PermissionDenied("no"), "storage-denied"],
    [new Deno.errors.NotCapable("no"), "storage-denied"],
    [Object.assign(new Error("no"), { code: "EROFS" }), "storage-denied"],
    [new Error("input/output error"), "storage-denied"],
    [null, "storage-denied"],
    [new TypeError("x is undefined"), "internal"],
    [new ShoalError("storage-full", "as it is"), "storage-full"],
  ];
  for (const [error, code] of codes) assert.equal(storageError(error).code, code, String(error));
});
