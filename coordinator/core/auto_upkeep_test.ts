// The schedule that the planner chose, while a run goes on: it comes with a cut and stays for as long as its order holds; another
// one alone is worth a new cut only if it earns the standstill back, and noise never makes one.
import assert from "node:assert/strict";
import { VirtualSwarm } from "../../test/support/virtual_swarm.ts";
import { followedSchedule } from "../../peer/schedule/placed.ts";
import { planStatus, previewReplan } from "./replan.ts";

const LINE = {
  ...{ n_layer: 8, n_embd: 32, n_inner: 32, block_size: 32, batch_size: 4, gradient_accumulation_steps: 6 },
  ...{ max_iters: 2000, lr_decay_iters: 2000, n_stage: 2 },
};
const NEAR = { rttMs: 0.2, upBytesPerS: 1e8 };

function swarmOf(
  config: Record<string, unknown>,
  options: { noise?: number; speeds?: number[] } = {},
): VirtualSwarm {
  const { noise = 0, speeds = [40, 40] } = options;
  const peers = speeds.map((blockMs, i) => ({ id: `p${i}`, blockMs }));
  const swarm = new VirtualSwarm({ config: { ...LINE, ...config }, peers, noise });
  swarm.links = NEAR;
  return swarm;
}

/** Links are measured by then, so that DualPipe is taken. */
function chosen(
  config: Record<string, unknown> = {},
  options: { noise?: number; speeds?: number[] } = {},
): VirtualSwarm {
  const swarm = swarmOf({ ...config, schedule: "dynamic" }, options);
  swarm.train({ steps: 5 });
  swarm.run.feed({ type: "admin", action: "change", step: 6, set: { schedule: "auto" } });
  swarm.train({ steps: 3 });
  assert.equal(followed(swarm), "dualpipe", swarm.told.join("\n"));
  return swarm;
}

function followed(swarm: VirtualSwarm): string {
  return followedSchedule(swarm.state.view!);
}

Deno.test("auto upkeep: a change to auto chooses from that step on, says why, and a change back ends it", () => {
  const swarm = chosen();
  assert.match(swarm.told.at(-1)!, /^a step should take 0\.\d+ s; Schedule dualpipe: 0\.\d+ s per step; /);
  assert.equal(swarm.state.view!.config!.schedule, "auto");
  assert.equal(planStatus(swarm.state)!.schedule, "dualpipe");
  assert.match(planStatus(swarm.state)!.reasons[0]!, /^Schedule dualpipe: .*dynamic/);
  swarm.run.feed({ type: "admin", action: "change", step: 0, set: { schedule: "dynamic" } });
  swarm.train({ steps: 2 });
  assert.equal(followed(swarm), "dynamic");
  assert.equal(swarm.state.stepsRedone, 0);
});

Deno.test("auto upkeep: a few per cent do not pay for a new cut, not even once links are known", () => {
  const swarm = swarmOf({ schedule: "auto" });
  swarm.train({ steps: 2 });
  assert.match(swarm.state.planning.plan!.reasons[0]!, /no link was measured yet/);
  const { gen } = swarm.run;
  swarm.train({ steps: 30 });
  assert.deepEqual([followed(swarm), swarm.run.gen], ["dynamic", gen], swarm.told.join("\n"));
  const preview = previewReplan(swarm.state);
  assert.equal(preview.sentences[0], "The schedule is dynamic now and would be dualpipe.");
  assert.ok(preview.possible && preview.after! < preview.before! && preview.after! > 0.9 * preview.before!);
});

Deno.test("auto upkeep: what the dry run shows is what the organizer gets", () => {
  const swarm = swarmOf({ schedule: "auto" });
  swarm.train({ steps: 6 });
  swarm.run.feed({ type: "admin", action: "replan" });
  swarm.train({ steps: 2 });
  assert.equal(followed(swarm), "dualpipe");
});

Deno.test("auto upkeep: noise of 20 % on every operation moves nothing in 140 steps", () => {
  const swarm = chosen({}, { noise: 0.2 });
  const { gen } = swarm.run;
  swarm.train({ steps: 140 });
  assert.deepEqual([followed(swarm), swarm.run.gen], ["dualpipe", gen], swarm.told.join("\n"));
});

Deno.test("auto upkeep: a peer that becomes slow ends an order that waits for it", () => {
  const swarm = chosen();
  swarm.slowdown["p1"] = 3;
  swarm.train({ steps: 1 });
  const slow = swarm.steps.at(-1)!.took;
  swarm.train({ seconds: 60 });
  assert.ok(swarm.told.some((text) => /^p1 takes 3\.0 times as long/.test(text)), swarm.told.join("\n"));
  assert.ok(swarm.stepSeconds < 0.75 * slow, `${swarm.stepSeconds} s, ${slow} s before`);
  assert.ok(swarm.optimum >= 0.85 * swarm.stepSeconds, `${swarm.stepSeconds} s, at best ${swarm.optimum} s`);
  assert.equal(swarm.state.stepsRedone, 0);
});

Deno.test("auto upkeep: links that have become slow are seen in time, though nobody came or went", () => {
  const swarm = chosen();
  swarm.train({ steps: 10 });
  swarm.links = { ...NEAR, rttMs: 800 };
  swarm.train({ steps: 20 });
  assert.equal(followed(swarm), "dualpipe");
  swarm.train({ steps: 40 });
  assert.equal(followed(swarm), "dynamic", swarm.told.join("\n"));
  const said = swarm.told.find((text) => /^The schedule becomes dynamic instead of dualpipe\. /.test(text));
  assert.match(said ?? "", /A step is expected to take [\d.]+ s before, [\d.]+ s after\.$/);
  const { gen } = swarm.run;
  swarm.train({ steps: 70 });
  assert.equal(swarm.run.gen, gen, "and that is all");
});

Deno.test("auto upkeep: at the end of a run a new cut is not earned back any more", () => {
  // The order is weighed at its 64th step, the 70th of the run.
  const swarm = chosen({ max_iters: 73, lr_decay_iters: 73 });
  swarm.train({ steps: 10 });
  swarm.links = { ...NEAR, rttMs: 800 };
  const { gen } = swarm.run;
  swarm.train({ steps: 54 });
  assert.equal(swarm.state.committed, 72);
  assert.deepEqual([followed(swarm), swarm.run.gen], ["dualpipe", gen], swarm.told.join("\n"));
});

Deno.test("auto upkeep: where layers move anyway, the other orders are weighed for that cut", () => {
  const swarm = swarmOf({ schedule: "auto", n_stage: 3, n_layer: 12 }, { speeds: [40, 40, 40] });
  swarm.train({ steps: 6 });
  const { cut } = swarm.run;
  swarm.slowdown["p1"] = 3;
  swarm.train({ steps: 20 });
  assert.ok(
    swarm.run.cut > cut && swarm.told.some((text) => /^(Layers|The layers)/.test(text)),
    swarm.told.join("\n"),
  );
  const { reasons, schedules } = swarm.state.planning.plan!;
  assert.match(reasons[0]!, /^Schedule \S+: [\d.]+ s per step; .*zb-h2 /);
  assert.ok(schedules.length > 4);
});

Deno.test("auto upkeep: a departure ends the order and not the step, and whoever comes is used, without a cut too many", () => {
  const swarm = chosen();
  const { cut } = swarm.run;
  swarm.run.gone("p1");
  assert.deepEqual([swarm.run.cut, followed(swarm)], [cut, "dynamic"]);
  assert.deepEqual(swarm.run.layout(), ["p0:012345", "p0:012345"]);
  swarm.train({ steps: 3 });
  swarm.join({ id: "p2", blockMs: 40 });
  swarm.train({ seconds: 120 });
  // It had no measured link when it came, and what the other order would gain since pays for no cut.
  const { gen } = swarm.run;
  assert.deepEqual([followed(swarm), swarm.run.cut > cut], ["dynamic", true], swarm.told.join("\n"));
  assert.match(swarm.told.join("\n"), /^The dynamic order is placed anew\. A step is expected to take 1\.9/m);
  swarm.train({ seconds: 120 });
  assert.equal(swarm.run.gen, gen, swarm.told.join("\n"));
  assert.equal(previewReplan(swarm.state).sentences[0], "The schedule is dynamic now and would be dualpipe.");
  assert.equal(swarm.state.stepsRedone, 0);
});

Deno.test("auto upkeep: with a fixed order, too, there are plans for the loss of each peer, and they are used", () => {
  const swarm = chosen({}, { speeds: [40, 40, 4000] });
  for (let i = 0; i < 4; i++) swarm.run.pass(2_000, ["p0", "p1", "p2"]);
  const { standBy } = swarm.state.planning;
  assert.deepEqual(standBy.map(({ peer }) => peer).toSorted().slice(0, 2), ["p0", "p1"]);
  for (const { peer, answer, sentence, amendedSeconds } of standBy) {
    if (peer === "p2") continue;
    assert.ok(answer.kind === "plan" && amendedSeconds! > 1.5 * swarm.stepSeconds, peer);
    assert.match(answer.reasons[0]!, /^Schedule /);
    assert.match(sentence, /^If p\d left: the others would take over at once, [\d.]+ s per step/);
  }
});
