// A GPT-2 across peers is the one-process run, bit for bit, also when a peer dies. Everything else about departures does not depend
// on the model (sim_test.ts); a tied table's two ends round their shares apart, for any model, so it is not compared here.
import assert from "node:assert/strict";
import { assertEqualsReference, createWorld, tinyConfig } from "./support.ts";

for (const reduce of ["raw32", "int8"] as const) {
  Deno.test(`a GPT-2 in three stages ends with the one-process run's bits, ${reduce}`, async () => {
    const gpt2 = { architecture: "gpt2", n_kv_head: 2, tie_word_embeddings: false };
    const config = tinyConfig({ ...gpt2, reduce, shadows: true });
    const world = createWorld(config, 7, 4);
    world.at(900, () => world.crash("p2"));
    const finished = await world.run();
    await world.drain(2000);
    assert.ok(finished, `stuck at step ${world.coordinator.state.committed}`);
    await assertEqualsReference(world, config, reduce);
  });
}
