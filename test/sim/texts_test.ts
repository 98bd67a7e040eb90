// Worlds in which the stages write texts while everything else happens: peers die, join, are paused, links break, the coordinator
// dies. All invariants hold as without texts; a text that nothing disturbed is what one process writes; every text ends.
import assert from "node:assert/strict";
import { play } from "./play.ts";
import { planOf } from "./scenarios.ts";
import { Readers } from "./writing.ts";

const SCENARIOS = [
  ...["calm", "crashes", "rejoin", "zombie", "links", "partition", "pause-leave-join", "coordinator-crash"],
  ...["replan", "last-holder", "2bw", "lora", "everything"],
];
const SEEDS = 3;
const FIRST_SEED = 60_500;
const TEXTS = 6;

Deno.test("texts are written while peers come and go, and nothing else is the worse for it", async () => {
  console.log(`seeds from ${FIRST_SEED}; one: SHOAL_SEED=n`);
  const only = Deno.env.get("SHOAL_SEED");
  let ended = 0, restarts = 0;
  for (const scenario of SCENARIOS) {
    for (let seed = FIRST_SEED; seed < FIRST_SEED + SEEDS; seed++) {
      if (only !== undefined && Number(only) !== seed) continue;
      const where = `${scenario} ${seed}`;
      let readers: Readers | null = null;
      const outcome = await play(planOf(scenario, seed), {}, (world, reference) => {
        readers = new Readers(world, reference, TEXTS);
      });
      assert.equal(outcome.violation, "", where);
      await readers!.settle();
      for (const [id, text] of readers!.asked) {
        assert.notEqual(text.ended, "", `${where}: text ${id} has not ended`);
        ended += text.ended === "end" ? 1 : 0;
        restarts += text.begun.at(-1)?.restarts ?? 0;
        const over = /the run is over/.test(text.reason);
        if (scenario === "calm") assert.ok(text.ended === "end" || over, `${where}: ${text.reason}`);
      }
    }
  }
  console.log(`${ended} texts, ${restarts} begun anew`);
  if (only === undefined) assert.ok(ended > 50 && restarts > 5, `${ended} texts, ${restarts} begun anew`);
});
