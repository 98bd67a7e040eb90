// Pins over a restart: of a peer that returns under its own name, of a computer under another name, and no more than there may be.
import assert from "node:assert/strict";
import { join } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { Pins, PINS_MAX } from "./pins.ts";

const MARK = "0123456789abcdef", OTHER = "fedcba9876543210";

async function inFolder(test: (open: () => Pins, path: string) => void): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-pins-" });
  try {
    test(() => new Pins(folder), join(folder, "pins.json"));
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

Deno.test("pins: outlive the coordinator; who returns has its own, and who bears its name alone has not", () =>
  inFolder((open) => {
    const first = open();
    first.set("deno-1", MARK, 2);
    first.set("deno-2", null, 0);
    first.set("deno-1", MARK, 1);
    const again = open();
    assert.equal(again.all.length, 2, "an older wish is still there");
    assert.deepEqual([again.ofReturned("deno-1", MARK), again.ofReturned("deno-2", null)], [1, 0]);
    assert.deepEqual([again.ofReturned("deno-1", OTHER), again.ofReturned("deno-1", null)], [null, null]);
    again.set("deno-1", MARK, null);
    assert.equal(open().ofReturned("deno-1", MARK), null);
  }));

Deno.test("pins: a computer under another name takes its pin over, once, and only if the other is gone", () =>
  inFolder((open) => {
    const pins = open();
    pins.set("tab-1", MARK, 3);
    assert.equal(pins.ofNewcomer("tab-5", MARK, (peer) => peer === "tab-1"), null);
    assert.equal(pins.ofNewcomer("tab-5", OTHER, () => false), null);
    assert.equal(pins.ofNewcomer("tab-5", null, () => false), null);
    assert.equal(pins.ofNewcomer("tab-5", MARK, () => false), 3);
    assert.equal(open().ofReturned("tab-5", MARK), 3);
    assert.equal(pins.ofNewcomer("tab-6", MARK, (peer) => peer === "tab-5"), null, "one pin, two peers");
  }));

Deno.test("pins: of too many the oldest is forgotten; a list that cannot be read is told with its remedy", () =>
  inFolder((open, path) => {
    const pins = open();
    for (let i = 0; i <= PINS_MAX; i++) pins.set(`deno-${i}`, null, 0);
    assert.deepEqual([pins.all.length, pins.all[0]?.peer], [PINS_MAX, "deno-1"]);
    for (const text of ["{", "[]", '{"next":1,"entries":[{"id":"p1","peer":"a","mark":"x","stage":0}]}']) {
      Deno.writeTextFileSync(path, text);
      assert.throws(
        open,
        (error) => error instanceof ShoalError && /pin the computers anew/.test(error.message),
      );
    }
  }));
