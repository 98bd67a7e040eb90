// The learning-rate table against Math.cos, at its corners, and pinned to the bit.
import assert from "node:assert/strict";
import { readConfig } from "./config.ts";
import { cosinePi, learningRates } from "./schedule.ts";

const PINNED = [0.00014285714285714287, 0.003, 0.00165, 0.0003000849733811542];

Deno.test("schedule: the series agrees with Math.cos", () => {
  for (let i = 0; i <= 1000; i++) {
    const x = i / 1000;
    assert.ok(Math.abs(cosinePi(x) - Math.cos(Math.PI * x)) < 1e-15, `${x}`);
  }
});

Deno.test("schedule: warm-up rises linearly, then the rate falls to the floor and stays", () => {
  const config = readConfig({
    ...{ max_iters: 100, warmup_iters: 9, lr_decay_iters: 80, learning_rate: 1, min_lr: 0.1 },
  });
  const rates = learningRates(config);
  assert.equal(rates.length, 100);
  rates.subarray(0, 9).forEach((rate, i) => assert.equal(rate, (i + 1) / 10));
  assert.equal(rates[9], 1);
  for (let i = 10; i < 80; i++) assert.ok(rates[i]! < rates[i - 1]! && rates[i]! > 0.1);
  assert.ok(rates.subarray(80).every((rate) => rate === 0.1));
});

Deno.test("schedule: no warm-up and no decay are possible", () => {
  const rates = learningRates(readConfig({ max_iters: 3, warmup_iters: 0, lr_decay_iters: 0, min_lr: 1e-3 }));
  assert.deepEqual([...rates], [1e-3, 1e-3, 1e-3]);
});

Deno.test("schedule: the demo's table is pinned, because all holders must step alike", () => {
  const rates = learningRates(readConfig({}));
  assert.deepEqual([rates[0], rates[20], rates[160], rates[299]], PINNED);
});
