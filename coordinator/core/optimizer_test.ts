// Which stages make their steps on a GPU, and that the coordinator never takes "unread" for a state's hash.
import assert from "node:assert/strict";
import { RunHarness, stateName } from "../../test/support/run_harness.ts";
import { holderBytes } from "../../peer/model/stage_memory.ts";
import { SNAPSHOT_MEMORY_SHARE } from "../../peer/wire/snapshots.ts";
import { UNREAD_STATE } from "../../peer/wire/values.ts";
import type { RunRecord } from "./run_record.ts";
import { runOf } from "./fit.ts";

interface Wish {
  able?: string[];
  memoryBytes?: number;
}

/** Peers with a stage each, as far as there are stages; those in `able` can make a step on their GPU. */
function training(peers: string[], changes: Record<string, unknown>, wish: Wish = {}): RunHarness {
  const { able = peers, memoryBytes = 1e9 } = wish;
  const run = new RunHarness({ min_peers: peers.length, optimizer: "auto", max_iters: 20, ...changes });
  for (const peer of peers) {
    const about = { runtime: "deno" as const, adapter: "a GPU", engine: "wgsl", name: peer };
    run.feed({ type: "join", peer: { id: peer, ...about } });
    const gpuOptimizer = able.includes(peer);
    run.say(peer, { type: "measured", blockMs: 10, memoryBytes, gpuOptimizer });
    run.now++;
  }
  run.ready();
  return run;
}

function modes({ state }: RunHarness): (string | undefined)[] {
  return state.view!.stages.map((stage) => stage.optimizer);
}

/** A step that is committed, and applied on GPUs. */
function commitUnread(run: RunHarness): void {
  const { committed } = run.state;
  run.commitOnly();
  for (const { index, replicas } of run.state.view!.stages) {
    const [{ peer } = assert.fail()] = replicas;
    run.applied(peer, index, { step: committed, hash: UNREAD_STATE });
  }
}

Deno.test("optimizer: on the GPU where one peer that can holds the stage, if the run leaves it open", () => {
  assert.deepEqual(modes(training(["a", "b"], {})), ["gpu", "gpu"]);
  assert.deepEqual(modes(training(["a", "b"], { optimizer: "exact" })), [undefined, undefined]);
  assert.deepEqual(modes(training(["a", "b"], {}, { able: ["b"] })), [undefined, "gpu"]);
  assert.deepEqual(modes(training(["a", "b"], { shadows: true })), [undefined, undefined]);
  assert.deepEqual(modes(training(["a", "b", "c"], { n_stage: 2 })), ["gpu", undefined]);
});

Deno.test("optimizer: adapters make their steps in the exact core, for a GPU's would train whole matrices", () => {
  assert.deepEqual(modes(training(["a", "b"], { lora_rank: 2 })), [undefined, undefined]);
});

Deno.test("optimizer: the ends of a tied embedding add up integers; one stage that is both ends need not", () => {
  const tied = { tie_word_embeddings: true, n_layer: 3 };
  assert.deepEqual(modes(training(["a", "b", "c"], tied)), [undefined, "gpu", undefined]);
  assert.deepEqual(modes(training(["a"], { ...tied, n_stage: 1 })), ["gpu"]);
});

Deno.test("optimizer: a peer needs room for the GPU's and for the exact state that may come back", () => {
  const { spec, config, view } = training(["a"], { n_stage: 1 }).state;
  const [stage] = view!.stages;
  const bytes = (optimizer: "gpu" | "exact") =>
    holderBytes(stage!, { ...runOf(stage!), optimizer }, { spec, config, kind: "wgsl" });
  const offer = (room: number) => ({ memoryBytes: Math.ceil(room / (1 - SNAPSHOT_MEMORY_SHARE)) });
  assert.deepEqual(modes(training(["a"], { n_stage: 1 }, offer(bytes("gpu")))), ["gpu"]);
  const less = training(["a"], { n_stage: 1 }, offer(bytes("gpu") - 2));
  assert.deepEqual(modes(less), [undefined]);
  assert.equal(less.state.view!.stages[0]!.inflight, stage!.inflight, "the room decides nothing else");
  assert.ok(bytes("exact") < bytes("gpu"));
});

Deno.test("optimizer: slots beyond what keeps the pipeline busy make room for it", () => {
  const setting = { n_stage: 2, gradient_accumulation_steps: 12 };
  const { spec, config, view } = training(["a", "b"], setting).state;
  assert.deepEqual(view!.stages.map((stage) => stage.inflight), [12, 12]);
  const bytes = view!.stages.map((stage) =>
    holderBytes(stage, { ...runOf(stage), optimizer: "gpu" }, { spec, config, kind: "wgsl" })
  );
  const memoryBytes = Math.ceil((Math.max(...bytes) - 2) / (1 - SNAPSHOT_MEMORY_SHARE)) - 1;
  const tight = training(["a", "b"], setting, { memoryBytes });
  const larger = bytes.indexOf(Math.max(...bytes));
  assert.deepEqual(modes(tight), ["gpu", "gpu"]);
  assert.equal(tight.state.view!.stages[larger]!.inflight, 11);
});

Deno.test("optimizer: whoever learns a stage ends it there, for the rest of the cut, and only there", () => {
  const run = training(["a", "b"], {});
  run.hello("c");
  run.say("c", { type: "measured", blockMs: 10, memoryBytes: 1e9, gpuOptimizer: true });
  commitUnread(run);
  assert.deepEqual(run.layout().filter((stage) => stage.includes("c?")).length, 1);
  const stage = run.layout().findIndex((it) => it.includes("c?"));
  const expected = ["gpu", "gpu"];
  expected[stage] = "exact";
  assert.deepEqual(modes(run), expected);
  assert.deepEqual(run.state.stateHashes[0]?.[stage], undefined, "unread is no hash");
  const holder = run.state.view!.stages[stage]!.replicas[0]!.peer;
  run.applied("c", stage, { step: 0 });
  assert.ok(run.layout()[stage]!.includes("c?"), "there is nothing to compare its state with");
  run.applied(holder, stage, { step: 0 });
  assert.deepEqual(run.state.stateHashes[0], { [stage]: stateName(1, stage) });
  assert.ok(!run.layout()[stage]!.includes("c?"), "it is a holder: its state is the holder's");
  assert.ok(run.state.peers["c"] !== undefined && run.state.peers[holder] !== undefined);
  run.gone("c");
  assert.deepEqual(modes(run), expected, "with one holder again it stays as it is");
});

Deno.test("optimizer: peers that come back to a restarted coordinator have everything, without a hash", () => {
  const before = training(["a", "b"], {});
  commitUnread(before);
  const { config, spec, gen, view, committed, lastCommit } = before.state;
  const { step, cut, hashes, gradNormSq } = lastCommit!;
  const record: RunRecord = {
    ...{ epoch: "e", config, spec, corpusHash: "", gen, view, committed, peers: [], idsUpTo: 4, ended: null },
    commit: { step, gen, cut, hashes, gradNormSq },
  };
  const run = RunHarness.restored(record);
  for (const [stage, id] of ["a", "b"].entries()) {
    const about = { id, runtime: "deno" as const, adapter: "none", engine: "wgsl", name: id };
    const peer = { ...about, blockMs: 10, memoryBytes: 1e9, gpuOptimizer: true };
    const held = { stage, step: 1, hash: UNREAD_STATE };
    run.feed({ type: "return", peer, have: { cut, stages: [held] } });
  }
  assert.deepEqual([run.state.phase, run.state.committed, run.state.stepsRedone], ["round", 1, 0]);
  assert.deepEqual(run.state.stateHashes, {});
  assert.deepEqual(modes(run), ["gpu", "gpu"]);
  run.applied("a", 0, { step: 0 });
  assert.ok(
    run.state.peers["a"] !== undefined,
    "read back later, it has a hash: no reason to put anybody out",
  );
});
