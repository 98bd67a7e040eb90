// The simulation's share of the gate: two thousand fixed worlds over all scenarios. New seeds are `npm run sim -- --first-seed=…`,
// so that the gate never depends on luck. Beside them, that the machinery itself is reproducible and notices what it should.
import assert from "node:assert/strict";
import { play } from "./play.ts";
import { runSeeds, STATE_COUNT, statesMissed, tasksOf } from "./runner.ts";
import { planOf, SCENARIOS } from "./scenarios.ts";
import { rerunLine, type Tally } from "./tally.ts";

const WORLDS = 2_100;
const FIRST_SEED = 1;
const JOBS = 2;

/** What must have happened in a scenario, or it tests nothing: the names are those of the nemesis' hits. */
const HITS: Record<string, string[]> = {
  crash: ["crash"],
  crashes: ["crash", "join"],
  zombie: ["mute", "freeze"],
  rejoin: ["crash", "join"],
  "second-failure": ["crash"],
  links: ["cut"],
  partition: ["partition"],
  oneway: ["partition"],
  clog: ["clog", "spike"],
  late: ["clog"],
  swizzle: ["swizzle", "crash"],
  crooked: ["refusal"],
  corrupt: ["refusal"],
  replay: [
    "replayed frame",
    "doubled frame",
    "frame in another's name",
    "replayed message",
    "message of another stage",
  ],
  "pause-leave-join": ["pause", "leave", "join", "hold"],
  replicas: ["crash"],
  butterfly: ["crash", "cut", "join"],
  "last-holder": ["crash-stage", "crash"],
  rot: ["rot-in shadow: logged", "rot-in learner: installing"],
  "rot-restart": ["rot-in shadow: logged", "coordinator"],
  misled: ["mislead-in shadow: awaiting parts"],
  shadow: ["crash"],
  "coordinator-crash": ["coordinator"],
  "torn-log": ["coordinator"],
  "disk-full": ["disk-full", "coordinator"],
  clock: ["clock", "timers"],
  overflow: ["overflow", "crash", "coordinator", "crash-stage"],
  replan: ["slow", "replan", "crash", "join"],
  "2bw": ["crash", "coordinator", "leave", "clog"],
  lora: ["crash", "coordinator", "leave", "freeze"],
};

function failuresOf(tallies: Tally[]): string {
  return tallies.flatMap(({ scenario, failures }) =>
    failures.map(({ seed, violation }) => `${violation}\n  ${rerunLine(scenario, seed)}`)
  ).join("\n");
}

Deno.test(`simulation: ${WORLDS} fixed worlds over ${SCENARIOS.length} scenarios violate no invariant`, async () => {
  console.log(`seeds from ${FIRST_SEED} on, ${JOBS} workers`);
  const options = { scenarios: SCENARIOS, firstSeed: FIRST_SEED, seeds: WORLDS, jobs: JOBS };
  const tallies = await runSeeds(options);
  assert.equal(failuresOf(tallies), "");
  assert.equal(tallies.reduce((sum, tally) => sum + tally.worlds, 0), WORLDS);
  const of = (name: string) => tallies.find((tally) => tally.scenario === name)!;
  for (const [name, wanted] of Object.entries(HITS)) {
    for (const hit of wanted) assert.ok(of(name).hits[hit]! > 0, `"${name}" never did "${hit}"`);
  }
  assert.ok(of("states").worlds >= STATE_COUNT, "too few worlds to crash in every state");
  assert.deepEqual(statesMissed(of("states")), [], "states in which nothing was ever crashed");
  assert.ok(of("replay").fenced > 0, "no replayed frame was ever refused");
  assert.ok(of("crash").recomputed > 0, "no micro-batch was ever computed again");
  assert.ok(of("last-holder").redone > 0, "no stage was ever lost");
  assert.ok(of("mirror").recomputed > 0, "no mirror ever took over");
  const { departures, recomputed, redone } = of("calm");
  assert.deepEqual({ departures, recomputed, redone }, { departures: 0, recomputed: 0, redone: 0 });
});

Deno.test("simulation: the same seed is the same run, to the last virtual millisecond", async () => {
  for (const scenario of ["everything", "crash", "swizzle"]) {
    const [once, again] = [await play(planOf(scenario, 7)), await play(planOf(scenario, 7))];
    assert.deepEqual(again, once);
    const other = await play(planOf(scenario, 8));
    assert.notEqual(other.virtualMs, once.virtualMs);
  }
});

Deno.test("simulation: the frames' way over bytes and the real engine change nothing in the course of a run", async () => {
  const plan = planOf("crashes", 5);
  const quick = await play(plan);
  assert.deepEqual(await play(plan, { bytes: true }), quick);
});

Deno.test("simulation: seeds are dealt out evenly and every scenario starts with the first", () => {
  const tasks = tasksOf({ scenarios: ["a", "b"], firstSeed: 10, seeds: 61, jobs: 2 });
  const seeds = (name: string) =>
    tasks.filter((it) => it.scenario === name).flatMap((it) =>
      Array.from({ length: it.seeds }, (_, i) => it.firstSeed + i)
    );
  assert.deepEqual(seeds("a"), Array.from({ length: 31 }, (_, i) => 10 + i));
  assert.deepEqual(seeds("b"), Array.from({ length: 30 }, (_, i) => 10 + i));
});
