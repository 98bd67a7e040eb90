// The planning benchmark's flags, rows and table; and that no plan beats the bound it is judged by.
import assert from "node:assert/strict";
import { isPlaced } from "../peer/schedule/catalogue.ts";
import { slowestPlacing } from "./plan_textbook.ts";
import { parseFlags, type Planned, planOne, rowOf, table } from "./plan.ts";

const one: Planned = {
  peers: 4,
  seed: 1,
  ms: 10,
  cpuMs: 7,
  seconds: 2,
  stages: 3,
  ofBound: 1.5,
  ofExact: 1,
  ofFixed: 1,
};

Deno.test("a row has medians, the worst time, and the worst distance from the optimum", () => {
  const row = rowOf([one, { ...one, ms: 30, seconds: 4, ofExact: 1.02, ofFixed: 1.01 }, {
    ...one,
    ms: 20,
    seconds: 3,
    ofExact: null,
    ofFixed: null,
  }]);
  assert.deepEqual([row.medianMs, row.worstMs, row.seconds, row.ofExact, row.ofFixed, row.swarms], [
    ...[20, 30, 3, 1.02, 1.01, 3],
  ]);
  const lines = table([row, rowOf([{ ...one, peers: 200, ofExact: null, ofFixed: null }])]).split("\n");
  assert.match(
    lines[0]!,
    /^peers +swarms +median ms +worst ms +cpu ms +stages +step s +of bound +of exact, worst +of fixed, worst$/,
  );
  assert.match(lines[1]!, /^ +4 +3 +20 +30 +7 +3 +3\.000 +1\.50 +1\.020 +1\.010$/);
  assert.match(lines[2]!, /^ +200 +1 .* - +-$/);
});

Deno.test("no plan beats the bound, and the search none beats the optimum", () => {
  for (const [peers, seed] of [[3, 1], [4, 2], [9, 3]] as const) {
    const planned = planOne(peers, seed)!;
    assert.ok(planned.ofBound >= 1, `${planned.ofBound}`);
    assert.ok(planned.ofFixed! <= 1.01, `${planned.ofFixed}`);
    if (planned.ofExact !== null) assert.ok(planned.ofExact >= 1 - 1e-9, `${planned.ofExact}`);
  }
});

Deno.test("placing published schedules is timed for any number of peers", () => {
  const { schedule, ms, cpuMs } = slowestPlacing(5);
  assert.ok(isPlaced(schedule) && ms > 0 && cpuMs >= 0);
});

Deno.test("wrong flags are refused with the value and the remedy", () => {
  assert.deepEqual(parseFlags(["--peers=4,200"]).peers, [4, 200]);
  assert.throws(() => parseFlags(["--peers=4,x"]), /--peers must be whole numbers from 1 to 200, got "x"/);
  assert.throws(() => parseFlags(["--seeds=0"]), /--seeds must be/);
  assert.throws(() => parseFlags(["--peer=4"]), /unknown flag "--peer" \(did you mean "--peers"\?\)/);
});
