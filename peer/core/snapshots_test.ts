// A peer's part in snapshots: what it does when it is told, whom it needs links to, what it keeps of its own, and how it brings
// a stage back. Several desks talk to each other by hand.
import assert from "node:assert/strict";
import { SNAPSHOT_PAYLOAD_BYTES_MAX } from "../wire/frame.ts";
import type { KeepOrder, SnapshotOrder } from "../wire/snapshots.ts";
import { SNAPSHOT_MESSAGE_BYTES_MAX } from "./keeper_wire.ts";
import { type DeskEffect, SnapshotDesk } from "./snapshots.ts";

const PLAN = { firstLayer: 0, endLayer: 2 };
const FILE = Uint8Array.from({ length: 1_000 }, (_, i) => i * 7);

/** Desks with links between all of them; effects that leave the group are noted by name. */
class Group {
  readonly desks = new Map<string, SnapshotDesk>();
  readonly effects: [peer: string, effect: DeskEffect][] = [];
  now = 0;

  constructor(names: string[], bytesMax = 100_000) {
    for (const self of names) this.desks.set(self, new SnapshotDesk({ self, bytesMax }));
  }

  at(name: string): SnapshotDesk {
    return this.desks.get(name)!;
  }

  tell(name: string, order: SnapshotOrder): void {
    this.perform(name, this.at(name).order(order, this.now));
  }

  keep(name: string, order: KeepOrder): void {
    this.tell(name, { type: "keep", order });
  }

  export(name: string, step: number, keepers: { peer: string; index: number }[], file = FILE): void {
    const where = { cut: 1, step, stage: 0 };
    this.tell(name, { type: "snapshot-out", ...where, k: 1, keepers });
    assert.equal(this.at(name).wants(where), true);
    const made = { plan: PLAN, hash: `state ${step}`, file, now: this.now };
    this.perform(name, this.at(name).exported(where, made));
    assert.equal(this.at(name).wants(where), false, "an export is for one order");
  }

  perform(name: string, effects: DeskEffect[]): void {
    for (const effect of effects) {
      this.effects.push([name, effect]);
      if (effect.do === "connect") this.perform(name, this.at(name).link(effect.peer, true, this.now));
      if (effect.do === "send") {
        this.perform(effect.to, this.desks.get(effect.to)?.receive(name, effect.bytes, this.now) ?? []);
      }
    }
  }

  /** Lets paced messages go out. */
  settle(ms = 2_000): void {
    for (const end = this.now + ms; this.now < end; this.now += 10) {
      for (const [name, desk] of this.desks) this.perform(name, desk.tick(this.now));
    }
  }

  said(type: string): [string, unknown][] {
    return this.effects.flatMap(([name, effect]) =>
      effect.do === "say" && effect.message.type === type ? [[name, effect.message]] : []
    );
  }

  did<T extends DeskEffect["do"]>(what: T): [string, Extract<DeskEffect, { do: T }>][] {
    return this.effects.flatMap(([name, effect]) =>
      effect.do === what ? [[name, effect as Extract<DeskEffect, { do: T }>]] : []
    );
  }
}

const KEEPERS = [{ peer: "k0", index: 0 }, { peer: "k1", index: 1 }];

/** Two keepers have the stage's shards of a step, and the holder its own copy. */
function keptGroup(step = 10): Group {
  const group = new Group(["h", "k0", "k1"]);
  for (const { peer, index } of KEEPERS) {
    group.keep(peer, { order: "expect", ...PLAN, step, k: 1, index, from: "h" });
  }
  group.export("h", step, KEEPERS);
  group.settle();
  assert.deepEqual(group.said("kept").map(([name]) => name).toSorted(), ["k0", "k1"]);
  return group;
}

function restoreOrder(group: Group, step = 10): SnapshotOrder {
  const [[, message]] = group.said("kept") as [[string, { totalBytes: number; hash: string }]];
  const { totalBytes, hash } = message;
  const snapshot = { step, ...PLAN, k: 1, totalBytes, hash };
  const where = { cut: 1, step, stage: 0, ...PLAN, hash: `state ${step}` };
  return { type: "restore", ...where, snapshot, keepers: KEEPERS };
}

Deno.test("desk: exported, sent, kept, flipped; both ends ask for the link and let go of it afterwards", () => {
  const group = keptGroup();
  const exported = { type: "exported", cut: 1, step: 10, stage: 0, hash: "state 10", own: true };
  assert.deepEqual(group.said("exported"), [["h", exported]]);
  const links = group.did("connect").map(([name, { peer }]) => `${name}-${peer}`);
  assert.deepEqual(new Set(links), new Set(["k0-h", "k1-h", "h-k0", "h-k1"]));
  assert.equal(group.at("h").needs("k0") && group.at("k0").needs("h"), true);
  for (const keeper of ["k0", "k1"]) group.keep(keeper, { order: "flip", ...PLAN, step: 10 });
  group.keep("h", { order: "own", ...PLAN, step: 10 });
  assert.equal(group.at("h").needs("k0") || group.at("k0").needs("h"), false);
  assert.equal(group.at("k0").bytes, 1_008);
  assert.equal(group.at("h").bytes, FILE.length);
  const [[name, { copy }]] = group.did("save") as [[string, DeskEffect & { do: "save" }]];
  assert.deepEqual([name, copy], ["h", { ...PLAN, step: 10, hash: "state 10", file: FILE }]);
});

Deno.test("desk: an offer that overtakes the coordinator's word is made again", () => {
  const group = new Group(["h", "k0"]);
  group.export("h", 10, [KEEPERS[0]!]);
  group.settle(100);
  assert.equal(group.at("k0").refused, 1);
  group.keep("k0", { order: "expect", ...PLAN, step: 10, k: 1, index: 0, from: "h" });
  group.settle();
  assert.equal(group.said("kept").length, 1);
});

Deno.test("desk: a newer copy waits beside the restorable one, and an overtaken one goes", () => {
  const group = new Group(["h"]);
  for (const step of [10, 20, 30]) {
    group.export("h", step, []);
    if (step === 10) group.keep("h", { order: "own", ...PLAN, step });
  }
  assert.equal(group.at("h").bytes, 2 * FILE.length);
  const bring = (step: number) => group.tell("h", { ...restore(step), snapshot: null, keepers: [] });
  for (const step of [10, 20, 30]) bring(step);
  assert.deepEqual(group.did("upload").map(([, { step }]) => step), [10, 30]);
  assert.equal(group.said("restore-failed").length, 1);
  group.tell("h", { ...restore(30), hash: "another state" });
  assert.equal(group.said("restore-failed").length, 2);
  group.keep("h", { order: "own", ...PLAN, step: 30 });
  assert.equal(group.at("h").bytes, FILE.length);
});

function restore(step: number): SnapshotOrder & { type: "restore" } {
  const where = { cut: 1, step, stage: 0, ...PLAN, hash: `state ${step}` };
  return { type: "restore", ...where, snapshot: null, keepers: [] };
}

Deno.test("desk: without room there is no own copy, and the coordinator is told", () => {
  const group = new Group(["h"], FILE.length - 1);
  group.export("h", 10, []);
  const exported = { type: "exported", cut: 1, step: 10, stage: 0, hash: "state 10", own: false };
  assert.deepEqual(group.said("exported"), [["h", exported]]);
  assert.equal(group.at("h").bytes, 0);
});

Deno.test("desk: the holder is gone; a keeper puts the state together and uploads it", () => {
  for (const restorer of ["k0", "k1", "stranger"]) {
    const group = keptGroup();
    group.desks.delete("h");
    group.desks.set("stranger", new SnapshotDesk({ self: "stranger", bytesMax: 100_000 }));
    group.tell(restorer, restoreOrder(group));
    group.settle();
    const [[name, upload]] = group.did("upload") as [[string, DeskEffect & { do: "upload" }]];
    assert.equal(name, restorer);
    assert.deepEqual([upload.cut, upload.step, upload.stage, upload.hash], [1, 10, 0, "state 10"]);
    assert.deepEqual(upload.file, FILE, restorer);
  }
});

Deno.test("desk: nobody has a shard any more; the coordinator hears of it", () => {
  const group = keptGroup();
  group.keep("k1", { order: "clear" });
  group.keep("k0", { order: "clear" });
  group.tell("k0", restoreOrder(group));
  group.settle();
  assert.equal(group.said("restore-failed").length, 1);
  assert.equal(group.did("upload").length, 0);
});

Deno.test("desk: a keeper that is gone is not waited for, although its link was never made", () => {
  const group = keptGroup();
  group.desks.set("stranger", new SnapshotDesk({ self: "stranger", bytesMax: 100_000 }));
  const restorer = group.desks.get("stranger")!;
  restorer.order(restoreOrder(group), 0);
  assert.equal(restorer.needs("k0"), true);
  const said = restorer.order({ type: "keep", order: { order: "gone", peer: "k0" } }, 0);
  assert.equal(restorer.needs("k0"), false);
  assert.deepEqual(said.map((it) => it.do === "send" && it.to), ["k1"], "the other keeper is asked at once");
  const [failed] = restorer.order({ type: "keep", order: { order: "gone", peer: "k1" } }, 0);
  assert.ok(failed?.do === "say" && failed.message.type === "restore-failed", JSON.stringify(failed));
});

Deno.test("desk: a keeper that cannot be reached is tried a few times, and no timer runs for it", () => {
  const desk = new SnapshotDesk({ self: "h", bytesMax: 100_000 });
  const where = { cut: 1, step: 10, stage: 0 };
  const begun = desk.order({ type: "snapshot-out", ...where, k: 1, keepers: [KEEPERS[0]!] }, 0);
  assert.deepEqual(begun, [{ do: "connect", peer: "k0" }]);
  desk.exported(where, { plan: PLAN, hash: "s", file: FILE, now: 0 });
  assert.equal(desk.waitMs(0), null);
  const tries = [1, 2, 3, 4, 5].map(() => desk.link("k0", false, 0).length);
  assert.deepEqual(tries, [1, 1, 1, 0, 0]);
  assert.equal(desk.core.sender.pending, 0);
});

Deno.test("desk: shards of an overtaken snapshot are not sent any more, whoever was to keep them", () => {
  const group = new Group(["h", "k1"]);
  group.export("h", 10, [KEEPERS[0]!]);
  group.export("h", 20, [KEEPERS[1]!]);
  assert.equal(group.at("h").core.sender.pending, 1);
});

Deno.test("desk: what a frame may carry is what a snapshot message may be", () => {
  assert.equal(SNAPSHOT_PAYLOAD_BYTES_MAX, SNAPSHOT_MESSAGE_BYTES_MAX);
});
