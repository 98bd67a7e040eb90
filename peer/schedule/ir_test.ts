// What an operation waits for and sends follows from the placement alone.
import assert from "node:assert/strict";
import { interleaved, one, oneForwardOneBackward } from "./emitters.ts";
import { chimera } from "./emitters_chimera.ts";
import { dualPipe } from "./emitters_split.ts";
import { dependencies, deviceOf, sends } from "./ir.ts";

const straight = oneForwardOneBackward(3, 4);

Deno.test("the ends of the pipeline wait for nothing from outside and send nothing out", () => {
  assert.deepEqual(dependencies(one("F", 0, 1), straight), []);
  assert.deepEqual(dependencies(one("BW", 2, 1), straight), [
    { kind: "F", direction: 0, stage: 2, microBatch: 1, device: 2 },
  ]);
  assert.deepEqual(sends(one("F", 2, 1), straight), []);
  assert.deepEqual(sends(one("BW", 0, 1), straight), []);
});

Deno.test("a middle stage waits for its neighbours and sends to them", () => {
  assert.deepEqual(dependencies(one("F", 1, 2), straight), [
    { kind: "F", direction: 0, stage: 0, microBatch: 2, device: 0 },
  ]);
  assert.deepEqual(dependencies(one("B", 1, 2), straight), [
    { kind: "F", direction: 0, stage: 1, microBatch: 2, device: 1 },
    { kind: "B", direction: 0, stage: 2, microBatch: 2, device: 2 },
  ]);
  assert.deepEqual(sends(one("F", 1, 2), straight), [
    { kind: "activation", direction: 0, stage: 2, microBatch: 2, from: 1, to: 2 },
  ]);
  assert.deepEqual(sends(one("B", 1, 2), straight), [
    { kind: "gradient", direction: 0, stage: 0, microBatch: 2, from: 1, to: 0 },
  ]);
});

Deno.test("a weight gradient waits for its own input gradient and sends nothing", () => {
  assert.deepEqual(dependencies(one("W", 1, 2), straight), [
    { kind: "B", direction: 0, stage: 1, microBatch: 2, device: 1 },
  ]);
  assert.deepEqual(sends(one("W", 1, 2), straight), []);
});

Deno.test("stages on one device exchange no message", () => {
  assert.deepEqual(sends(one("F", 0, 0), interleaved(1, 2, 2)), []);
  const wrap = sends(one("F", 2, 0), interleaved(3, 3, 2));
  assert.deepEqual(wrap, [{ kind: "activation", direction: 0, stage: 3, microBatch: 0, from: 2, to: 0 }]);
});

Deno.test("the opposite direction runs the other way", () => {
  const upwards = { kind: "F" as const, direction: 1, stage: 0, microBatch: 0 };
  const [message] = sends(upwards, chimera(4, 4));
  assert.deepEqual([message?.from, message?.to], [3, 2]);
});

Deno.test("a fused pair waits for and sends what both halves do", () => {
  const schedule = dualPipe(4, 8);
  const pair = schedule.ops[1]!.find((op) => op.kind === "FB");
  assert.ok(pair?.kind === "FB");
  assert.deepEqual(
    dependencies(pair, schedule),
    [...dependencies(pair.forward, schedule), ...dependencies(pair.backward, schedule)],
  );
  assert.equal(sends(pair, schedule).length, 2);
});

Deno.test("an unknown stage is refused by name", () => {
  assert.throws(() => deviceOf(straight, 0, 7), /places no stage 7/);
});
