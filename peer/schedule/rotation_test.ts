// Rotation of shards over keepers: fair, and with little to send.
import assert from "node:assert/strict";
import { rotation } from "./rotation.ts";

const DATA_SHARDS_MAX = 4;

Deno.test("rotation: the parity wanders, everybody gets one shard, and one data shard moves at a time", () => {
  for (let k = 1; k <= DATA_SHARDS_MAX; k++) {
    const visits = new Array(k + 1).fill(0);
    for (let turn = 0; turn < 2 * k * (k + 1); turn++) {
      const [now, next] = [rotation(k, turn), rotation(k, turn + 1)];
      assert.deepEqual(now.toSorted(), Array.from({ length: k + 1 }, (_, i) => i));
      visits[now.indexOf(k)]++;
      assert.notEqual(now.indexOf(k), next.indexOf(k));
      assert.equal(next.filter((shard, slot) => shard !== now[slot]).length, 2);
    }
    assert.deepEqual(visits, new Array(k + 1).fill(2 * k));
  }
});
