// Adapters beside a frozen base, trained across peers with the CPU engine's kernels: the one-process run's bits, calm and when a
// peer dies, with a tied embedding too, since nothing of it is trained. Random faults by the hundred are the scenario "lora".
import assert from "node:assert/strict";
import { assertEqualsReference, createWorld, tinyConfig } from "./support.ts";

const LORA = { lora_rank: 2, lora_alpha: 8, lora_targets: "q_proj,v_proj,o_proj,down_proj" };

for (
  const [n_stage, architecture, tied] of [[1, "llama", false], [2, "gpt2", true], [3, "llama", true]] as const
) {
  Deno.test(`lora: a ${architecture} in ${n_stage} stages ends with the one-process run's bits`, async () => {
    const heads = architecture === "gpt2" ? { n_kv_head: 2 } : {};
    const shape = { architecture, tie_word_embeddings: tied, ...heads };
    const config = tinyConfig({ ...LORA, ...shape, n_stage, min_peers: n_stage, shadows: true });
    const world = createWorld(config, 7, n_stage + 1);
    world.at(900, () => world.crash(`p${n_stage - 1}`));
    world.at(1000, () => world.join());
    const finished = await world.run();
    await world.drain(2000);
    assert.ok(finished, `stuck at step ${world.coordinator.state.committed}`);
    await assertEqualsReference(world, config, architecture);
    for (const state of world.alive().flatMap((peer) => peer.holder.states())) {
      assert.ok(
        state.layout.tensors.every(({ name }) => name.includes(".lora_")),
        "only adapters are trained",
      );
    }
  });
}
