// Tests of the day's count: over restarts, over midnight, and with notes that make no sense.
import assert from "node:assert/strict";
import { DayCount } from "./limits_day.ts";
import { MemoryNotes } from "./store/notes.ts";

Deno.test("day: a restart goes on counting, another day begins at nothing", async () => {
  const notes = new MemoryNotes();
  let day = "2026-03-14";
  const first = new DayCount(notes, () => day);
  await first.open();
  assert.equal(first.count(0), 0);
  assert.equal(first.count(2_500_000), 2_500_000);
  await first.keep(2_600_000);
  const second = new DayCount(notes, () => day);
  await second.open();
  assert.equal(second.count(400_000), 3_000_000);
  day = "2026-03-15";
  assert.equal(second.count(450_000), 0, "midnight");
  assert.equal(second.count(1_450_000), 1_000_000);
  const third = new DayCount(notes, () => day);
  await third.open();
  assert.equal(third.count(0), 1_000_000, "what was noted on the way");
});

Deno.test("day: without a place, and with a spoilt note, it counts from nothing", async () => {
  const alone = new DayCount(null, () => "d");
  await alone.open();
  assert.equal(alone.count(5), 5);
  for (const text of ["", "{", "null", '{"day":"d","bytes":-1}', '{"day":"d","bytes":"9"}', "7"]) {
    const notes = new MemoryNotes();
    await notes.set("traffic of a day", text);
    const count = new DayCount(notes, () => "d");
    await count.open();
    assert.equal(count.count(5), 5, text);
  }
});
