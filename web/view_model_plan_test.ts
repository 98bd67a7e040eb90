// Tests of the plan on the admin page: what a dry run is said to bring, and that only a plan that changes something is offered.
import assert from "node:assert/strict";
import { status } from "./fixtures_data.ts";
import { plan, plans } from "./fixtures_plan.ts";
import type { ReplanPreview } from "../peer/wire/status.ts";
import { MOVES_SHOWN_MAX, planView, type PreviewView, type Replan } from "./view_model_plan.ts";

function replanOf(name: string): Replan {
  const fixture = plans.find((it) => it.name === `admin-plan-${name}`);
  assert.ok(fixture?.page === "admin" && fixture.model.replan);
  return fixture.model.replan;
}

const shown = replanOf("previewed");
assert.ok(shown.phase === "shown");
const gaining = shown.preview;

function previewed(part: Partial<ReplanPreview>): PreviewView {
  const view = planView({ ...status, plan }, { phase: "shown", preview: { ...gaining, ...part } });
  assert.ok(view?.preview);
  return view.preview;
}

Deno.test("plan: before the first view there is none, and a run that has ended is not planned anew", () => {
  assert.equal(planView(status, null), null);
  const over = planView({ ...status, plan, state: "finished" }, replanOf("previewed"));
  assert.deepEqual([over?.mayAsk, over?.preview], [false, null]);
  assert.equal(planView({ ...status, plan }, null)?.mayAsk, true);
});

Deno.test("plan: a dry run that gains says how much, what moves and what that costs", () => {
  const view = previewed({});
  assert.equal(view.verdict, "A step would take 487 ms instead of 644 ms, 24% less.");
  assert.match(
    view.cost ?? "",
    /^38\.2 MB .* move .* still for about 4\.6 s .* after 30 steps\. No step is lost\.$/,
  );
  assert.deepEqual(view.moves.map(({ peer, what, from, takes }) => [peer, what, from, takes]), [
    ["tab-77e2", "layers 3 to 4", "tab-09ae", "4.1 s"],
    ["deno-1d5b", "layer 5", "tab-c377", "1.2 s"],
    ["tab-c377", "layer 4", "a snapshot", "not known"],
  ]);
  assert.equal(view.stages[1]?.computes, "tab-09ae (9 micro-batches), tab-77e2 (7 micro-batches)");
});

Deno.test("plan: what would change nothing, or cannot be, is not offered; what costs more than it gains is, with a word", () => {
  const same = previewed({ after: 0.643, transfers: [], bytes: 0 });
  assert.deepEqual([same.cost, same.tone], [null, "good"]);
  const none = previewed({ possible: false, after: null, reason: "The run has ended." });
  assert.deepEqual([none.cost, none.verdict], [null, "There is no new plan. The run has ended."]);
  const worse = previewed({ after: 0.7, paysAfter: null });
  assert.match(worse.verdict, /^Nothing is gained: .* 700 ms instead of 644 ms/);
  assert.match(worse.cost ?? "", /does not pay/);
  assert.match(previewed({ before: null }).verdict, /^A step would take 487 ms\.$/);
  const shares = previewed({ after: 0.6, transfers: [], bytes: 0 });
  assert.match(shares.cost ?? "", /^Nothing has to be moved/);
});

Deno.test("plan: what was ordered is said until the view after it is there", () => {
  const applied = replanOf("applied");
  const said = (gen: number) => planView({ ...status, plan, gen }, applied)?.said?.text;
  assert.match(said(status.gen) ?? "", /begins at the next step boundary/);
  assert.match(said(status.gen + 1) ?? "", /in force/);
  assert.equal(planView({ ...status, plan }, replanOf("asking"))?.mayAsk, false);
  assert.match(planView({ ...status, plan }, replanOf("failed"))?.said?.text ?? "", /no answer from/);
});

Deno.test("plan: a plan for very many computers is cut, and says so", () => {
  const transfers = Array.from({ length: MOVES_SHOWN_MAX + 3 }, (_, i) => ({
    ...{ peer: `tab-${i}`, from: null, firstLayer: 0, endLayer: 1, bytes: 1, seconds: 1 },
  }));
  const view = previewed({ transfers });
  assert.deepEqual([view.moves.length, view.movesLeftOut], [MOVES_SHOWN_MAX, 3]);
});
