// Snapshots between peers in one thread: taken, taken again by changed chunks, restored with keepers that are gone, silent,
// empty or damaged, over links that lose, repeat and damage messages. Whatever happens, a file comes back whole or not at all.
import assert from "node:assert/strict";
import fc from "fast-check";
import { type Random, seededRandom } from "../../test/support/random.ts";
import { CONTENT_CHUNK_BYTES, hashBytes } from "../exact/chunk_hashes.ts";
import { cutShards, type SnapshotId } from "../exact/parity.ts";
import { rotation } from "../schedule/rotation.ts";
import { SnapshotCore, type SnapshotEffect } from "./keeper_core.ts";
import { KEEPER_SILENCE_MS } from "./keeper_restore.ts";
import { decodeSnapshot, encodeSnapshot } from "./keeper_wire.ts";

const RANGE = { firstLayer: 0, endLayer: 2 };
const K = 3;
const KEEPERS = ["p", "q", "r", "s"];
const BYTES_MAX = 100 * CONTENT_CHUNK_BYTES;

type Fate = "deliver" | "lose" | "repeat" | "damage";

interface Packet {
  from: string;
  to: string;
  bytes: Uint8Array;
}

/** Peers and a coordinator's bookkeeping; messages travel in order, with the fate that `fate` gives them. */
class World {
  now = 0;
  readonly peers = new Map<string, SnapshotCore>();
  readonly facts: { peer: string; effect: SnapshotEffect }[] = [];
  fate: (packet: Packet) => Fate = () => "deliver";
  #queue: Packet[] = [];

  constructor() {
    for (const id of ["a", "x", ...KEEPERS]) this.peers.set(id, new SnapshotCore({ bytesMax: BYTES_MAX }));
  }

  peer(id: string): SnapshotCore {
    return this.peers.get(id)!;
  }

  act(id: string, effects: SnapshotEffect[]): void {
    for (const effect of effects) {
      if (effect.do === "send") this.#queue.push({ from: id, to: effect.to, bytes: effect.bytes });
      else this.facts.push({ peer: id, effect });
    }
  }

  /** A holder sends its state to the keepers, as the coordinator's plan for snapshot number `turn` says. */
  snapshot(file: Uint8Array, step: number, turn = 0, keepers = KEEPERS): SnapshotId {
    const shards = cutShards(file, { ...RANGE, step, k: K });
    const slots = rotation(K, turn);
    keepers.forEach((keeper, slot) => {
      const index = slots[slot]!;
      this.act(
        keeper,
        this.peer(keeper).keep({ type: "expect", expectation: { ...RANGE, step, k: K, index, from: "a" } }),
      );
    });
    this.peer("a").send(keepers.map((to, slot) => ({ to, shard: shards[slots[slot]!]! })));
    const { index: _, ...id } = shards[0]!.id;
    return id;
  }

  flip(step: number): void {
    for (const id of KEEPERS) this.act(id, this.peer(id).keep({ type: "flip", ...RANGE, step }));
  }

  run(ms = 60_000): void {
    for (const end = this.now + ms; this.now < end; this.now += 10) {
      for (const [id, core] of this.peers) this.act(id, core.tick(this.now));
      for (let packet = this.#queue.shift(); packet !== undefined; packet = this.#queue.shift()) {
        this.#carry(packet);
      }
      if ([...this.peers.values()].every((core) => core.waitMs(this.now) === null)) return;
    }
  }

  #carry(packet: Packet): void {
    const { from, to } = packet;
    const fate = this.fate(packet);
    const receiver = this.peers.get(to);
    if (receiver === undefined || fate === "lose") return;
    const bytes = packet.bytes.slice();
    // Past the link's checksum, as a fault in memory would be.
    if (fate === "damage") bytes[bytes.length - 1]! ^= 4;
    for (let i = fate === "repeat" ? 2 : 1; i > 0; i--) this.act(to, receiver.receive(from, bytes, this.now));
  }

  told(kind: SnapshotEffect["do"]): SnapshotEffect[] {
    return this.facts.map(({ effect }) => effect).filter((effect) => effect.do === kind);
  }

  /** Who says to keep which shard of a step. */
  keepersOf(step: number): { peer: string; index: number }[] {
    return this.facts.flatMap(({ peer, effect }) =>
      effect.do === "kept" && effect.id.step === step ? [{ peer, index: effect.id.index }] : []
    );
  }

  restore(snapshot: SnapshotId): string | Uint8Array {
    this.act("x", this.peer("x").restore({ snapshot, keepers: this.keepersOf(snapshot.step) }, this.now));
    this.run();
    const end = this.facts.findLast(({ peer, effect }) => peer === "x" && /^restore/.test(effect.do))?.effect;
    if (end?.do === "restored") return end.file;
    return end?.do === "restore-failed" ? end.reason : "nothing";
  }
}

function stateFile(salt: number, chunks = 7): Uint8Array {
  const file = new Uint8Array(chunks * CONTENT_CHUNK_BYTES - 5);
  for (let i = 0; i < file.length; i++) file[i] = (i * 13 + (i >> 7)) & 0xff;
  file[3] = salt;
  return file;
}

function kept(world: World): SnapshotId {
  const id = world.snapshot(stateFile(1), 20);
  world.run();
  world.flip(20);
  return id;
}

Deno.test("snapshots: every keeper has its shard, and any one of them may be gone", () => {
  for (const gone of [...KEEPERS, null]) {
    const world = new World();
    const id = kept(world);
    assert.equal(world.told("flipped").length, K + 1);
    assert.deepEqual(world.keepersOf(20).map(({ index }) => index).toSorted(), [0, 1, 2, 3]);
    if (gone !== null) {
      world.peers.delete(gone);
      world.act("x", world.peer("x").gone(gone, world.now));
    }
    assert.deepEqual(world.restore(id), stateFile(1));
    assert.deepEqual(world.told("refused"), []);
    const outcomes = world.told("outcome").filter((it) => it.do === "outcome" && it.kept);
    assert.equal(outcomes.length, K + 1 + K);
  }
});

Deno.test("snapshots: a keeper that leaves while it sends is replaced at once", () => {
  const world = new World();
  const id = kept(world);
  world.act("x", world.peer("x").restore({ snapshot: id, keepers: world.keepersOf(20) }, world.now));
  const first = world.keepersOf(20).find(({ index }) => index === 0)!.peer;
  world.peers.delete(first);
  world.act("x", world.peer("x").gone(first, world.now));
  world.run(KEEPER_SILENCE_MS / 2);
  assert.deepEqual(world.told("restored").map((it) => it.do === "restored" && hashBytes(it.file)), [id.hash]);
});

Deno.test("snapshots: two keepers gone is too few, and the reason says what is missing", () => {
  const world = new World();
  const id = kept(world);
  world.peers.delete("p");
  world.peers.delete("q");
  const reason = world.restore(id);
  assert.match(String(reason), /^2 of 3 shards; .*silent/);
});

Deno.test("snapshots: a keeper whose hashes do not fit its shard is passed over", () => {
  const world = new World();
  const id = kept(world);
  world.fate = ({ from, to, bytes }) => {
    const message = decodeSnapshot(bytes);
    const offer = from === "q" && to === "x" && message.ok && message.value.type === "offer";
    return offer ? "damage" : "deliver";
  };
  assert.deepEqual(world.restore(id), stateFile(1));
  assert.ok(world.peer("x").refused.damaged > 0);
});

Deno.test("snapshots: a keeper with sound-looking hashes over a wrong shard is found by the file's hash", () => {
  const world = new World();
  const id = kept(world);
  const forged = cutShards(stateFile(9), { ...RANGE, step: 20, k: K })[0]!;
  const liar = world.keepersOf(20).find(({ index }) => index === 0)!.peer;
  const core = new SnapshotCore({ bytesMax: BYTES_MAX });
  world.peers.set(liar, core);
  const shard = { id: { ...id, index: 0 }, bytes: forged.bytes };
  core.keep({ type: "expect", expectation: { ...RANGE, step: 20, k: K, index: 0, from: "a" } });
  world.peer("a").send([{ to: liar, shard }]);
  world.run();
  assert.deepEqual(world.restore(id), stateFile(1));
  const [restored] = world.told("restored");
  assert.equal(restored?.do === "restored" && restored.damagedShard, 0);
});

Deno.test("snapshots: the next one sends changed chunks only, except where the parity has wandered", () => {
  const world = new World();
  kept(world);
  const before = { ...world.peer("a").sender.counts };
  world.snapshot(stateFile(2), 40, 0);
  world.run();
  world.flip(40);
  const after = { ...world.peer("a").sender.counts };
  // One chunk of data differs, and so the same chunk of the parity.
  assert.equal(after.chunksSent - before.chunksSent, 2);
  assert.equal(after.chunksSpared - before.chunksSpared, 3 * (K + 1) - 2);
  const id = world.snapshot(stateFile(2), 60, 1);
  world.run();
  assert.equal(world.peer("a").sender.counts.chunksSent - after.chunksSent, 2 * 3);
  world.flip(60);
  assert.deepEqual(world.restore(id), stateFile(2));
});

Deno.test("snapshots: until every keeper has the new one, the old one can be restored", () => {
  const world = new World();
  const old = kept(world);
  world.fate = ({ to }) => to === "s" ? "lose" : "deliver";
  const id = world.snapshot(stateFile(2), 40, 1);
  world.run(5_000);
  assert.equal(world.keepersOf(40).length, K);
  world.fate = () => "deliver";
  assert.deepEqual(world.restore(old), stateFile(1));
  // Three of four are enough for the new one as well.
  assert.deepEqual(world.restore(id), stateFile(2));
});

Deno.test("snapshots: own shards of a restoring keeper need not travel", () => {
  const world = new World();
  const id = kept(world);
  const keepers = world.keepersOf(20);
  const own = keepers.find(({ index }) => index === 1)!;
  const begun = world.now;
  world.act(own.peer, world.peer(own.peer).restore({ snapshot: id, keepers }, world.now));
  world.run();
  assert.equal(world.told("restored").length, 1);
  assert.equal(world.told("outcome").filter((it) => it.do === "outcome" && it.urgent).length, K - 1);
  assert.deepEqual(world.told("refused"), []);
  assert.ok(world.now - begun < KEEPER_SILENCE_MS, "nobody was waited for in vain");
});

Deno.test("snapshots: forged, truncated and foreign bytes are counted and change nothing", () => {
  const world = new World();
  kept(world);
  const core = world.peer("p");
  const before = core.keptBytes;
  const noise = fc.uint8Array({ maxLength: 200 });
  const valid = encodeSnapshot({ type: "fetch", id: core.keptShards[0]! });
  fc.assert(
    fc.property(noise, fc.nat({ max: valid.length - 1 }), (bytes, cut) => {
      const count = core.refused.malformed;
      const effects = [...core.receive("z", bytes, 0), ...core.receive("z", valid.subarray(0, cut), 0)];
      assert.ok(effects.every((effect) => effect.do === "refused"));
      assert.equal(core.refused.malformed, count + 2);
    }),
    { seed: 44, numRuns: 100 },
  );
  assert.equal(core.keptBytes, before);
});

function randomFate(random: Random): () => Fate {
  return () => {
    const x = random();
    return x < 0.03 ? "lose" : x < 0.06 ? "repeat" : x < 0.09 ? "damage" : "deliver";
  };
}

Deno.test("snapshots: over lossy links a file comes back whole or not at all, and after reconnects it comes back", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const world = new World();
    world.fate = randomFate(seededRandom(seed));
    const [files, ids]: [Uint8Array[], SnapshotId[]] = [[], []];
    for (let turn = 0; turn < 3; turn++) {
      files.push(stateFile(turn + 1, 4));
      ids.push(world.snapshot(files[turn]!, 20 * (turn + 1), turn));
      for (let tries = 0; world.keepersOf(20 * (turn + 1)).length < K + 1; tries++) {
        assert.ok(tries < 30, `seed ${seed}: snapshot ${turn} never completes`);
        world.run(3_000);
        for (const keeper of KEEPERS) world.peer("a").linkOpened(keeper);
        // A keeper that has given up expects the shard anew.
        if (tries % 5 === 4) world.snapshot(files[turn]!, 20 * (turn + 1), turn);
      }
      world.flip(20 * (turn + 1));
    }
    const end = world.restore(ids.at(-1)!);
    assert.ok(typeof end === "string" || hashBytes(end) === ids.at(-1)!.hash, `seed ${seed}`);
    world.fate = () => "deliver";
    assert.deepEqual(world.restore(ids.at(-1)!), files.at(-1), `seed ${seed}`);
    for (const id of KEEPERS) assert.equal(world.peer(id).keptShards.length, 1, `seed ${seed}`);
  }
});
