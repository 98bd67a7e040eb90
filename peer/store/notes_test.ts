// Notes: what was set is read back by the next one who opens them, and a place that fails costs nothing but the note.
import assert from "node:assert/strict";
import { join } from "node:path";
import { MemoryNotes, NOTE_CHARS_MAX, type Notes, SafeNotes } from "./notes.ts";
import { openDenoNotes } from "./notes_deno.ts";

Deno.test("a note outlives whoever wrote it, whatever its name is", async () => {
  const root = await Deno.makeTempDir();
  try {
    const folder = join(root, "not", "there yet");
    const name = "engine 1 builtin ../llvmpipe (LLVM 15, 256 bits)\n";
    assert.equal(await openDenoNotes(folder).get(name), null);
    await openDenoNotes(folder).set(name, "first");
    await openDenoNotes(folder).set(name, "second");
    await openDenoNotes(folder).set("another", "third");
    assert.equal(await openDenoNotes(folder).get(name), "second");
    assert.equal(await openDenoNotes(folder).get("another"), "third");
    assert.equal([...Deno.readDirSync(folder)].length, 2);
  } finally {
    await Deno.remove(root, { recursive: true });
  }
});

const broken: Notes = {
  get: () => Promise.reject(new Error("denied")),
  set: () => Promise.reject(new Error("full")),
};

Deno.test("notes that cannot be kept are remembered as long as the process lives", async () => {
  const notes = new SafeNotes(broken);
  assert.equal(await notes.get("a"), null);
  await notes.set("a", "text");
  assert.equal(await notes.get("a"), "text");
});

Deno.test("a note that is too long is neither kept nor believed", async () => {
  const kept = new MemoryNotes();
  const long = "x".repeat(NOTE_CHARS_MAX + 1);
  await new SafeNotes(kept).set("a", long);
  assert.equal(await kept.get("a"), null);
  await kept.set("b", long);
  assert.equal(await new SafeNotes(kept).get("b"), null);
});
