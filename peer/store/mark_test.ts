// The mark of a computer: the same for as long as it is kept, another one wherever nothing is, never one that was tampered with.
import assert from "node:assert/strict";
import { markOf } from "./mark.ts";
import { MemoryNotes } from "./notes.ts";

Deno.test("mark: it is kept, differs from computer to computer, and a damaged one is drawn anew", async () => {
  const notes = new MemoryNotes();
  const mark = await markOf(notes);
  assert.match(mark, /^[0-9a-f]{32}$/);
  assert.equal(await markOf(notes), mark);
  assert.notEqual(await markOf(new MemoryNotes()), mark);
  for (const damaged of ["", "short", `${mark} `, "x".repeat(65)]) {
    await notes.set("mark", damaged);
    const fresh = await markOf(notes);
    assert.notEqual(fresh, damaged);
    assert.equal(await markOf(notes), fresh);
  }
});
