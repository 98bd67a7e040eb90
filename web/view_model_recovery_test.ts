// Tests of what the admin reads about departures: no promise without a second holder, and every cost in words.
import assert from "node:assert/strict";
import type { DepartureStatus, RunStatus, StageSafety } from "../peer/wire/status.ts";
import { stages, status } from "./fixtures_data.ts";
import { atRisk, learning, recovering, rolledBack, survived } from "./fixtures_recovery.ts";
import { DEPARTURES_SHOWN_MAX, recoveryView } from "./view_model_recovery.ts";

function view(part: Partial<RunStatus>) {
  return recoveryView({ ...status, ...part });
}

/** Stage 2 alone, with one thing different. */
function guard(part: Partial<StageSafety>, snapshotStep = 340) {
  const safety = [{ ...status.safety[1]!, ...part }];
  const recovery = { ...status.recovery, snapshotStep };
  return view({ stages: [stages[1]!], safety, recovery }).guards[0]!;
}

function fact(part: Partial<RunStatus>, label: string): string | undefined {
  return view(part).costs.find((it) => it.label === label)?.value;
}

Deno.test("recovery: each stage says who holds it and what happens without one of them", function test() {
  const { guards } = view({});
  assert.deepEqual(guards.map((it) => it.who), [
    "tab-4f21 and deno-81c0 compute.",
    "tab-09ae computes, deno-1d5b keeps a copy.",
    "tab-c377 computes, tab-4f21 keeps a copy.",
    "deno-1d5b computes, tab-09ae keeps a copy.",
  ]);
  assert.deepEqual(new Set(guards.map((it) => it.tone)), new Set(["good"]));
  assert.equal(guards[1]!.outcome, "Either may vanish: the other goes on, nothing is lost.");
  assert.deepEqual([guards[1]!.stage, guards[1]!.holds], ["Stage 2", "layers 3 to 4"]);
  const three = { holders: ["tab-09ae", "x", "y"] };
  assert.match(guard(three).who, /^tab-09ae computes, x and y keep copies\.$/);
  assert.match(guard(three).outcome, /^Any one may vanish: the others go on, nothing is lost\.$/);
});

Deno.test("recovery: a lone holder is named with what it would cost, and nothing is promised", function test() {
  const one = { redundancy: "none" as const, holders: ["tab-09ae"] };
  const costly = guard({ ...one, stepsAtRisk: 3 }, 338);
  assert.equal(
    costly.outcome,
    "If tab-09ae vanishes: 3 steps are done again, from the snapshot of step 338.",
  );
  assert.equal(costly.tone, "warn");
  assert.match(guard({ ...one, stepsAtRisk: 1 }, 0).outcome, /1 step is done again, from the start\.$/);
  assert.match(guard(one).outcome, /step 340 has everything, so no step is lost, but it takes longer\.$/);
  assert.equal(guard(one).tone, "warn");
  for (const { outcome } of [...view(atRisk).guards, ...view(learning).guards]) {
    assert.equal(/nothing is lost/.test(outcome), !/If |catching up/.test(outcome), outcome);
  }
});

Deno.test("recovery: a learner, a copy that is behind, and a stage that nobody holds", function test() {
  assert.match(view(learning).guards[2]!.who, /^tab-c377 computes, tab-77e2 is fetching a copy\.$/);
  const behind = guard({ stepsAtRisk: 2 });
  assert.match(behind.outcome, /^The copy is catching up\..* 2 steps are done again/);
  assert.equal(behind.tone, "warn");
  const nobody = guard({ holders: [], redundancy: "none", stepsAtRisk: 2 });
  assert.deepEqual([nobody.who, nobody.tone], ["Nobody holds it.", "bad"]);
  assert.match(nobody.outcome, /goes back to the snapshot of step 340/);
  assert.match(guard({ snapshot: "parity" }).who, /with parity\.$/);
  assert.match(guard({ snapshot: "copy" }).who, /with another peer\.$/);
});

Deno.test("recovery: what departures have cost is one sentence", function test() {
  assert.equal(view({}).summary, "Nobody has vanished so far.");
  assert.equal(
    view({ recovery: survived }).summary,
    "3 computers have vanished so far, no step was lost. The step in hand came 640 ms late in the median, " +
      "1.3 s at worst.",
  );
  assert.match(view(rolledBack).summary, /^4 computers .* 3 steps were done again\./);
  const first = { ...survived, departuresTotal: 1, stall: null };
  assert.equal(view({ recovery: first }).summary, "One computer has vanished so far, no step was lost.");
});

Deno.test("recovery: departures are rows of words, the newest first, and bounded", function test() {
  const [newest] = view(rolledBack).departures;
  assert.deepEqual([newest!.peer, newest!.step, newest!.late, newest!.taken, newest!.lost, newest!.tone], [
    ...["tab-9f13", "342", "7.4 s", "nothing", "3 steps", "warn"],
  ]);
  const [open] = view(recovering).departures;
  assert.deepEqual([open!.late, open!.taken, open!.lost], ["not yet", "16 micro-batches", "nothing so far"]);
  assert.equal(view({ ...recovering, state: "finished" }).departures[0]!.late, "the run ended");
  const one = survived.departures[0] as DepartureStatus;
  const many = Array.from({ length: 20 }, (_, i) => ({ ...one, atMs: i, peer: `tab-${i}` }));
  const shown = view({ recovery: { ...survived, departures: many } }).departures;
  assert.equal(shown.length, DEPARTURES_SHOWN_MAX);
  assert.equal(shown[0]!.peer, "tab-19");
});

Deno.test("recovery: figures have units, and delays appear with the first departure", function test() {
  assert.equal(fact({}, "Median delay"), undefined);
  assert.equal(fact({ recovery: survived }, "95% within"), "1.3 s");
  assert.equal(fact({ recovery: survived }, "Moved for recovery"), "96.4 MB");
  assert.equal(fact({}, "Kept to send again, most"), "1.18 MB");
  assert.equal(fact({ peers: [] }, "Kept to send again, most"), "0 B");
  assert.equal(fact({}, "Totals that differed"), "none");
  assert.equal(fact(recovering, "Totals that differed"), "1 (tab-9f13)");
  const suspects = Array.from({ length: 9 }, (_, i) => ({ peer: `tab-${i}`, count: 2 }));
  const many = fact({ recovery: { ...survived, suspects } }, "Totals that differed");
  assert.equal(many, "18 (tab-6, tab-7, tab-8)");
});

Deno.test("recovery: without a plan there are no promises", function test() {
  assert.deepEqual(view({ stages: [], safety: [] }).guards, []);
  assert.deepEqual(view({ safety: [] }).guards, [], "a plan that nothing is known of");
});
