// The simulated network, clock and disk by themselves: what they promise to a world is what makes its faults realistic.
import assert from "node:assert/strict";
import { LOG_FORMAT, type LogRecord } from "../../coordinator/store/run_log_format.ts";
import { specOf } from "../../peer/model/layout.ts";
import { seededRandom } from "../support/random.ts";
import { Clock } from "./clock.ts";
import { Disk } from "./disk.ts";
import { chance } from "./forgery.ts";
import { Network } from "./network.ts";
import { simConfig } from "./scenarios.ts";

function setUp() {
  const clock = new Clock();
  const network = new Network(clock, seededRandom(3));
  const got: string[] = [];
  const send = (from: string, to: string, what: string) =>
    network.send(from, to, "frames", () => got.push(`${what}@${from}>${to}`));
  const drain = async () => {
    while (await clock.step());
    return got;
  };
  return { clock, network, got, send, drain };
}

Deno.test("clock: callbacks run by time, and in order of asking where times are equal", async () => {
  const clock = new Clock();
  const random = seededRandom(1);
  const ran: [number, number][] = [];
  for (let i = 0; i < 500; i++) {
    const ms = Math.floor(random() * 40);
    clock.after(ms, () => void ran.push([ms, i]));
  }
  while (await clock.step());
  assert.equal(ran.length, 500);
  assert.deepEqual(ran, ran.toSorted(([a, i], [b, j]) => a - b || i - j));
});

Deno.test("network: a pair is first in first out, two pairs overtake each other", async () => {
  const { send, drain } = setUp();
  for (let i = 0; i < 50; i++) {
    send("a", "b", String(i));
    send("a", "c", String(i));
  }
  const got = await drain();
  const order = (pair: string) => got.filter((it) => it.endsWith(pair)).map((it) => Number(it.split("@")[0]));
  const inOrder = Array.from({ length: 50 }, (_, i) => i);
  assert.deepEqual(order("a>b"), inOrder);
  assert.deepEqual(order("a>c"), inOrder);
  assert.notDeepEqual(got.map((it) => Number(it.split("@")[0])), got.map((_, i) => Math.floor(i / 2)));
});

Deno.test("network: a clog holds one direction, then all of it arrives in order; a second clog goes on holding", async () => {
  const { clock, network, got, send, drain } = setUp();
  network.clog(({ from }) => from === "a", 500);
  const second = network.clog(({ from, to }) => from === "a" && to === "b", Infinity);
  send("a", "b", "1");
  send("a", "c", "2");
  send("b", "a", "3");
  let during: string[] = [];
  clock.after(499, () => void (during = [...got]));
  while (await clock.step());
  assert.deepEqual(during, ["3@b>a"]);
  assert.deepEqual(got, ["3@b>a", "2@a>c"]);
  send("a", "b", "4");
  while (await clock.step());
  network.release(second);
  send("a", "b", "5");
  assert.deepEqual(await drain(), ["3@b>a", "2@a>c", "1@a>b", "4@a>b", "5@a>b"]);
});

Deno.test("network: a cut loses what is under way and nothing that is sent later", async () => {
  const { clock, network, send, drain } = setUp();
  send("a", "b", "lost");
  send("b", "a", "lost too");
  send("a", "c", "other");
  network.cut("a", "b");
  clock.after(1, () => send("a", "b", "later"));
  assert.deepEqual((await drain()).toSorted(), ["later@a>b", "other@a>c"]);
});

Deno.test("network: a spike delays, and ends", async () => {
  const { clock, network, send, drain } = setUp();
  network.spike(() => true, 10_000, 100);
  for (let i = 0; i < 20; i++) send("a", String(i), "slow");
  await drain();
  assert.ok(clock.now > 2_000, `${clock.now}`);
  const from = clock.now;
  for (let i = 0; i < 20; i++) send("a", String(i), "quick");
  await drain();
  assert.ok(clock.now - from < 50);
});

/** A log of a run and three commits. */
function logOf(disk: Disk, commits: number): void {
  const config = simConfig({});
  const begin = { config, spec: specOf(config, 7), corpusHash: "", epoch: "e", gen: 0, view: null };
  const run = { ...begin, committed: 0, commit: null, peers: [], idsUpTo: 0, ended: null };
  assert.ok(disk.append({ kind: "run", format: LOG_FORMAT, run }));
  for (let step = 0; step < commits; step++) assert.ok(disk.append(commitOf(step)));
}

function commitOf(step: number): LogRecord {
  return { kind: "commit", step, gen: 1, cut: 1, hashes: ["x"], gradNormSq: 1 };
}

Deno.test("disk: what was synced survives, a torn tail is cut and told, a full disk refuses", () => {
  const random = seededRandom(9);
  for (let round = 0; round < 100; round++) {
    const disk = new Disk();
    logOf(disk, 3);
    disk.sync();
    const tear = round % 2 === 1;
    if (!tear) assert.ok(disk.append(commitOf(3)));
    disk.crash(random, tear);
    const { committed } = disk.load();
    assert.ok(committed === 3 || (!tear && committed === 4), `${committed}`);
    assert.equal(disk.load().committed, committed, "a second reading finds the same");
    assert.ok(disk.torn <= 1);
    assert.ok(disk.append(commitOf(committed)), "the log goes on after a torn tail");
    disk.full = true;
    assert.equal(disk.append(commitOf(committed + 1)), false);
    assert.equal(disk.load().committed, committed + 1);
  }
});

Deno.test("disk: a tear does cut into records, and what was not synced does get lost", () => {
  const random = seededRandom(10);
  let torn = 0;
  let lost = 0;
  for (let round = 0; round < 100; round++) {
    const disk = new Disk();
    logOf(disk, 1);
    disk.sync();
    assert.ok(disk.append(commitOf(1)));
    disk.crash(random, false);
    if (disk.load().committed === 1) lost++;
    torn += disk.torn;
  }
  assert.ok(torn > 50 && lost > 50, `${torn} torn, ${lost} lost`);
});

Deno.test("chance depends on its salt and its text, and is spread evenly", () => {
  const drawn = Array.from({ length: 2_000 }, (_, i) => chance(5, `p${i}>C`));
  const mean = drawn.reduce((sum, value) => sum + value, 0) / drawn.length;
  assert.ok(Math.abs(mean - 0.5) < 0.03, `${mean}`);
  assert.equal(chance(5, "p1>C"), drawn[1]);
  assert.notEqual(chance(6, "p1>C"), drawn[1]);
});
