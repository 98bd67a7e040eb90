// When room on the run's disk is little, that it is said once and taken back, and that the system's own figures are read.
import assert from "node:assert/strict";
import { DiskWatch, isLow, LOW_BYTES_MAX, type Room } from "./disk.ts";

Deno.test("disk: little is five percent, at most ten gigabytes, or fewer than three checkpoints", () => {
  const of = (freeBytes: number, sizeBytes: number, checkpoint = 0) =>
    isLow({ freeBytes, sizeBytes }, checkpoint);
  assert.deepEqual([of(4.9e9, 100e9), of(5e9, 100e9)], [true, false]);
  assert.deepEqual([of(LOW_BYTES_MAX - 1, 4e12), of(LOW_BYTES_MAX, 4e12)], [true, false]);
  assert.deepEqual([of(29e9, 100e9, 10e9), of(30e9, 100e9, 10e9)], [true, false]);
});

Deno.test("disk: it is said once when room becomes little, once when it is there again, and not where nothing is known", () => {
  const said: string[] = [];
  let room: Room | null = { freeBytes: 50e9, sizeBytes: 100e9 };
  const watch = new DiskWatch({
    ...{ folder: "anywhere", checkpointBytes: () => 0, look: () => room },
    say: (text) => said.push(text),
  });
  try {
    assert.deepEqual(watch.status, { freeBytes: 50e9, sizeBytes: 100e9, low: false });
    for (const freeBytes of [2e9, 1.5e9]) {
      room = { freeBytes, sizeBytes: 100e9 };
      watch.look();
    }
    assert.equal(watch.status?.low, true);
    room = { freeBytes: 60e9, sizeBytes: 100e9 };
    watch.look();
    assert.deepEqual(said, [
      "the disk has 2.0 GB left; make room before checkpoints stop",
      "the disk has 60.0 GB again",
    ]);
    room = null;
    watch.look();
    assert.equal(watch.status, null);
    assert.equal(said.length, 2);
  } finally {
    watch.close();
  }
});

Deno.test("disk: the file system of a folder is asked, and one that is not there is no error", () => {
  for (const [folder, known] of [[".", true], ["./not/there", false]] as const) {
    const watch = new DiskWatch({ folder, checkpointBytes: () => 0, say: () => {} });
    watch.close();
    assert.equal(watch.status !== null, known);
    assert.ok(watch.status === null || watch.status.freeBytes <= watch.status.sizeBytes);
  }
});
