// The cadence of snapshots against its formula, a simulated mirror, and its bounds.
import assert from "node:assert/strict";
import fc from "fast-check";
import { seededRandom } from "../../test/support/random.ts";
import {
  type CadenceInput,
  departureRate,
  INTERVAL_STEPS_MAX,
  INTERVAL_STEPS_MIN,
  NO_DEPARTURES,
  observeDeparture,
  observePresence,
  PRIOR_DEPARTURES,
  PRIOR_PEER_SECONDS,
  REPAIR_PRIOR_S,
  SNAPSHOT_COST_PRIOR_S,
  snapshotCadence,
  stageLossRate,
} from "./cadence.ts";

const INPUT: CadenceInput = {
  seen: { departures: 9, peerSeconds: 8_200 },
  holders: [1],
  repairS: 10,
  snapshotCostS: 0.5,
  stepS: 0.5,
};

Deno.test("cadence: Young's interval, by hand", () => {
  // Ten departures in 10,000 s with the prior: one in 1,000 s. sqrt(2 * 0.5 * 1000) = 31.6 s = 63.2 steps.
  assert.equal(departureRate(INPUT.seen), 1e-3);
  assert.deepEqual(snapshotCadence(INPUT), { steps: 64, lossRate: 1e-3 });
  assert.equal(snapshotCadence({ ...INPUT, holders: [1, 1] }).steps, 45);
  assert.equal(snapshotCadence({ ...INPUT, snapshotCostS: 2 }).steps, 127);
});

Deno.test("cadence: few data fall back on the stated prior", () => {
  assert.equal(departureRate(NO_DEPARTURES), PRIOR_DEPARTURES / PRIOR_PEER_SECONDS);
  const known = { ...INPUT, repairS: REPAIR_PRIOR_S, snapshotCostS: SNAPSHOT_COST_PRIOR_S };
  for (const broken of [null, 0, -1, NaN, Infinity]) {
    assert.deepEqual(
      snapshotCadence({ ...INPUT, repairS: broken, snapshotCostS: broken }),
      snapshotCadence(known),
    );
  }
  for (const stepS of [null, 0, NaN]) {
    assert.equal(snapshotCadence({ ...INPUT, stepS }).steps, INTERVAL_STEPS_MIN);
  }
  assert.equal(snapshotCadence({ ...INPUT, holders: [] }).steps, INTERVAL_STEPS_MIN);
});

Deno.test("cadence: a stage without holder is lost for ever, a second holder counts for much", () => {
  assert.equal(stageLossRate(1e-3, 0, 10), Infinity);
  assert.equal(stageLossRate(1e-3, 1, 10), 1e-3);
  assert.ok(Math.abs(stageLossRate(1e-3, 2, 10) - 2e-5) < 1e-12);
  assert.ok(Math.abs(stageLossRate(1e-3, 3, 10) - 3e-3 * 2e-2 * 1e-2) < 1e-12);
  assert.equal(stageLossRate(10, 2, 1), 20);
  assert.equal(snapshotCadence({ ...INPUT, holders: [2, 3] }).steps, INTERVAL_STEPS_MAX);
  assert.equal(snapshotCadence({ ...INPUT, holders: [2, 0] }).steps, INTERVAL_STEPS_MIN);
});

/** Seconds until both holders of a mirror are gone; each leaves at `rate`, a lost one is replaced after `repair` seconds. */
function mirrorLife(rate: number, repair: number, random: () => number): number {
  const wait = (total: number) => -Math.log(1 - random()) / total;
  for (let time = 0;;) {
    time += wait(2 * rate);
    const second = wait(rate);
    if (second < repair) return time + second;
    time += repair;
  }
}

Deno.test("cadence: the loss rate of two holders is that of a simulated mirror", () => {
  const random = seededRandom(7);
  const lives = Array.from({ length: 4_000 }, () => mirrorLife(1e-3, 20, random));
  const mean = lives.reduce((sum, life) => sum + life, 0) / lives.length;
  const ratio = mean * stageLossRate(1e-3, 2, 20);
  // 4,000 exponential lives: a standard error of 1.6 %; the formula leaves out the repairs themselves, some 4 %.
  assert.ok(ratio > 0.95 && ratio < 1.12, `${ratio}`);
});

Deno.test("cadence: bounded, and never longer with more departures, fewer holders or cheaper snapshots", () => {
  const input = fc.record({
    seen: fc.record({ departures: fc.nat({ max: 50 }), peerSeconds: fc.nat({ max: 100_000 }) }),
    holders: fc.array(fc.integer({ min: 0, max: 4 }), { minLength: 1, maxLength: 6 }),
    repairS: fc.double({ min: 0.1, max: 300, noNaN: true }),
    snapshotCostS: fc.double({ min: 0.001, max: 10, noNaN: true }),
    stepS: fc.double({ min: 0.01, max: 10, noNaN: true }),
  });
  fc.assert(
    fc.property(input, (it) => {
      const { steps } = snapshotCadence(it);
      assert.ok(Number.isInteger(steps) && steps >= INTERVAL_STEPS_MIN && steps <= INTERVAL_STEPS_MAX);
      const { departures, peerSeconds } = it.seen;
      const worse: CadenceInput[] = [
        { ...it, seen: { departures: departures + 1, peerSeconds } },
        { ...it, snapshotCostS: it.snapshotCostS / 2 },
        { ...it, holders: [...it.holders, 1] },
        { ...it, repairS: it.repairS * 2 },
        { ...it, stepS: it.stepS * 2 },
      ];
      for (const other of worse) assert.ok(snapshotCadence(other).steps <= steps);
    }),
    { seed: 51, numRuns: 300 },
  );
});

Deno.test("departures: presence adds up, fades, and clocks that jump count little", () => {
  let seen = observePresence(NO_DEPARTURES, 4, 1_000);
  assert.equal(seen.peerSeconds, 0);
  seen = observePresence(seen, 4, 11_000);
  assert.equal(seen.peerSeconds, 40);
  seen = observeDeparture(seen, 4, 11_000);
  assert.equal(seen.departures, 1);
  const back = observePresence(seen, 4, 5_000);
  assert.deepEqual(back, { ...seen, atMs: 5_000 });
  const jumped = observePresence(seen, 4, 11_000 + 3_600_000 * 24);
  assert.ok(jumped.peerSeconds <= 40 + 4 * 60 && jumped.departures > 0.98);
});

Deno.test("departures: a steady rate is found, and a change of it within hours", () => {
  let seen = NO_DEPARTURES;
  const pass = (seconds: number, every: number) => {
    const start = seen.atMs ?? 0;
    for (let s = 10; s <= seconds; s += 10) {
      seen = observePresence(seen, 5, start + s * 1000);
      if (s % every === 0) seen = observeDeparture(seen, 5, start + s * 1000);
    }
  };
  pass(4 * 3600, 100);
  assert.ok(Math.abs(departureRate(seen) * 500 - 1) < 0.15, `${departureRate(seen)}`);
  pass(6 * 3600, 1_000);
  assert.ok(Math.abs(departureRate(seen) * 5_000 - 1) < 0.4, `${departureRate(seen)}`);
});
