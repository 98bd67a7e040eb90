// Plans under tight memory: whatever a peer is given fits what it offers, slots go first, then activations are computed
// again, then layers move, and what cannot be done is said in one sentence. As properties over random offers, and one by one.
import assert from "node:assert/strict";
import fc from "fast-check";
import { RunHarness } from "../../test/support/run_harness.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { holderBytes, type StageRun } from "../../peer/model/stage_memory.ts";
import type { RunConfig, StageSpec, View } from "../../peer/wire/run.ts";
import { stagesOf } from "../../peer/wire/view.ts";
import { createFit, hasRoom, roomBeside, roomOf, runOf } from "./fit.ts";
import { type PeerRecord, zeroCounters } from "./run_state.ts";
import { planView } from "./view_builder.ts";

const VOCABULARY = 101;
/** Activations weigh about as much as parameters, so that slots and recomputation both matter. */
const BASE = { n_layer: 4, n_embd: 64, n_inner: 192, block_size: 32, batch_size: 4, shadows: false };

function configOf(changes: Record<string, unknown> = {}): RunConfig {
  return readConfig({ ...BASE, gradient_accumulation_steps: 8, ...changes });
}

function peerOf(id: string, memoryBytes: number, changes: Partial<PeerRecord> = {}): PeerRecord {
  const about = { id, runtime: "tab" as const, adapter: "", engine: "wgsl (builtin)", name: id };
  const flags = { paused: false, leaving: false, hidden: false };
  return {
    ...about,
    joinedAt: 0,
    heardAt: 0,
    ...zeroCounters(),
    ...flags,
    blockMs: 10,
    memoryBytes,
    ...changes,
  };
}

/** Offered memory of which stages may take `bytes`. */
function offering(bytes: number): number {
  return Math.ceil(bytes / (1 - 1 / 8));
}

function bytesOf(config: RunConfig, range: [number, number], run: StageRun): number {
  const [firstLayer, endLayer] = range;
  const stage: StageSpec = {
    index: 0,
    firstLayer,
    endLayer,
    embed: firstLayer === 0,
    head: endLayer === config.n_layer,
  };
  return holderBytes(stage, run, { spec: specOf(config, VOCABULARY), config, kind: "wgsl" });
}

function plan(config: RunConfig, peers: PeerRecord[]) {
  return planView({ gen: 1, baseStep: 0, spec: specOf(config, VOCABULARY), config, peers });
}

function planned(config: RunConfig, peers: PeerRecord[]): View {
  const { view, missing } = plan(config, peers);
  assert.ok(view !== null, missing ?? "");
  return view;
}

function summary(view: View) {
  return view.stages.map(({ firstLayer, endLayer, inflight, recompute = "none", replicas }) =>
    `${firstLayer}-${endLayer} x${inflight} ${recompute} ${replicas.map((it) => it.peer).join("+")}`
  );
}

/** One stage of the whole model, run like this, fits exactly; with a byte less it does not. */
function edges(config: RunConfig, run: StageRun): [exact: View, below: View] {
  const bytes = offering(bytesOf(config, [0, 4], run));
  return [planned(config, [peerOf("a", bytes)]), planned(config, [peerOf("a", bytes - 2)])];
}

Deno.test("fit: with less memory slots go first, then attention and blocks are computed again, then one slot is left", () => {
  const config = configOf({ n_stage: 2, schedule: "gpipe" });
  const [exact, below] = [8, 7].map((slots) => {
    const half = Math.max(bytesOf(config, [0, 2], { slots, recompute: "none" }));
    const other = bytesOf(config, [2, 4], { slots, recompute: "none" });
    return planned(config, [peerOf("a", offering(half)), peerOf("b", offering(other))]);
  });
  assert.deepEqual(summary(exact!), ["0-2 x8 none a", "2-4 x8 none b"]);
  assert.deepEqual(summary(below!), ["0-2 x7 none a", "2-4 x7 none b"]);
});

Deno.test("fit: one stage holds to the byte what its peer has room for", () => {
  const config = configOf({ schedule: "gpipe" });
  const [all, seven] = edges(config, { slots: 8, recompute: "none" });
  assert.deepEqual([summary(all), summary(seven)], [["0-4 x8 none a"], ["0-4 x7 none a"]]);
  const [one, attention] = edges(config, { slots: 1, recompute: "none" });
  assert.deepEqual(summary(one), ["0-4 x1 none a"]);
  assert.match(summary(attention)[0]!, /^0-4 x[1-8] (attention|block) a$/);
  const least = offering(bytesOf(config, [0, 4], { slots: 1, recompute: "block" }));
  assert.deepEqual(summary(planned(config, [peerOf("a", least)])), ["0-4 x1 block a"]);
  const { missing } = plan(config, [peerOf("a", least - 2)]);
  assert.match(
    missing ?? "",
    /^stage 1 of 1 \(layers 1-4\) needs \d+ MB and a has \d+ MB for it; 1 MB are missing$/,
  );
});

Deno.test("fit: activations are computed again rather than the pipeline held up by too few slots", () => {
  const config = configOf({ n_stage: 2, schedule: "gpipe" });
  const roomy = peerOf("b", 1e9);
  // Stage 1 of 2 keeps busy with two slots: with room for one alone it takes the next level, with room for two it does not.
  const first = (run: StageRun) =>
    planned(config, [peerOf("a", offering(bytesOf(config, [0, 2], run))), roomy]);
  assert.match(summary(first({ slots: 2, recompute: "none" }))[0]!, /^0-2 x2 none a$/);
  assert.match(summary(first({ slots: 1, recompute: "none" }))[0]!, /^0-2 x[2-8] (attention|block) a$/);
});

Deno.test("fit: a level that the configuration names is kept, and no other is tried", () => {
  for (const recompute of ["none", "attention", "block"] as const) {
    const config = configOf({ recompute });
    const roomy = planned(config, [peerOf("a", 1e9)]);
    assert.deepEqual(summary(roomy), [`0-4 x${roomy.stages[0]!.inflight} ${recompute} a`]);
    const least = offering(bytesOf(config, [0, 4], { slots: 1, recompute }));
    assert.deepEqual(summary(planned(config, [peerOf("a", least)])), [`0-4 x1 ${recompute} a`]);
    assert.equal(plan(config, [peerOf("a", least - 2)]).view, null);
  }
});

Deno.test("fit: layers move to the peer with room before anything is computed twice, as far as there is another", () => {
  const config = configOf({ n_stage: 2 });
  const least = { slots: 1, recompute: "block" } as const;
  const layers = (view: View) =>
    Object.fromEntries(view.stages.map((it) => [it.replicas[0]!.peer, it.endLayer - it.firstLayer]));
  const small = offering(bytesOf(config, [0, 1], least));
  assert.deepEqual(layers(planned(config, [peerOf("a", small), peerOf("b", 1e9)])), { a: 1, b: 3 });
  const larger = offering(Math.max(bytesOf(config, [0, 2], least), bytesOf(config, [2, 4], least)));
  const both = planned(config, [peerOf("a", larger), peerOf("b", larger)]);
  assert.deepEqual(summary(both).map((it) => it.replace(/ .$/, "")), ["0-2 x1 block", "2-4 x1 block"]);
});

Deno.test("fit: where the first and the last peer have no room for a vocabulary, those with the most memory take the ends", () => {
  const config = configOf({ n_stage: 4 });
  const small = offering(bytesOf(config, [1, 2], { slots: 1, recompute: "block" }));
  const peers = [peerOf("a", small), peerOf("b", 9e8), peerOf("c", 1e9), peerOf("d", small)];
  const holders = planned(config, peers).stages.map((stage) => stage.replicas.map((it) => it.peer).join("+"));
  assert.deepEqual(holders.slice(1, 3), ["a", "d"]);
  assert.deepEqual([holders[0], holders[3]].toSorted(), ["b", "c"]);
});

Deno.test("fit: a peer without room for any layer is left out, and who has no room is no replica and no shadow", () => {
  const config = configOf({ n_stage: 2, shadows: true });
  const view = planned(config, [peerOf("tiny", 1000), peerOf("a", 1e9), peerOf("b", 1e9)]);
  assert.deepEqual(view.stages.map((stage) => stage.replicas.map((it) => it.peer)), [["a", "b"], ["b", "a"]]);
  const one = offering(bytesOf(config, [2, 4], { slots: 1, recompute: "block" }));
  const only = planned(config, [peerOf("a", 1e9), peerOf("b", one)]);
  const holders = only.stages.map((stage) => stage.replicas.map((it) => it.peer).join("+"));
  assert.deepEqual(holders.toSorted(), ["a", "b+a"]);
});

Deno.test("fit: a small replica lowers slots, but makes nobody compute twice", () => {
  const config = configOf({ n_stage: 1, schedule: "gpipe" });
  const none = offering(bytesOf(config, [0, 4], { slots: 3, recompute: "none" }));
  assert.deepEqual(summary(planned(config, [peerOf("a", 1e9), peerOf("b", none)])), ["0-4 x3 none a+b"]);
  const block = offering(bytesOf(config, [0, 4], { slots: 1, recompute: "block" }));
  assert.deepEqual(summary(planned(config, [peerOf("a", 1e9), peerOf("b", block)])), ["0-4 x8 none a"]);
});

Deno.test("fit: the double-precision engine is counted as what it is", () => {
  const config = configOf({ n_stage: 1 });
  const bytes = offering(bytesOf(config, [0, 4], { slots: 1, recompute: "block" }));
  assert.ok(plan(config, [peerOf("a", bytes)]).view !== null);
  assert.equal(plan(config, [peerOf("a", bytes, { engine: "cpu" })]).view, null);
});

const memories = fc.array(fc.integer({ min: 100_000, max: 12_000_000 }), { minLength: 1, maxLength: 6 });
const settings = fc.record({
  n_stage: fc.nat(4),
  shadows: fc.boolean(),
  schedule: fc.constantFrom("gpipe", "1f1b", "dynamic"),
  recompute: fc.constantFrom("auto", "none", "attention", "block"),
});

Deno.test("fit: no plan gives a peer more than it offers, every layer has a holder, and a refusal says how much is missing", () => {
  const seen = { plans: 0, refusals: 0 };
  const property = fc.property(
    memories,
    settings,
    fc.array(fc.integer({ min: 1, max: 100 })),
    (offers, changes, ms) => {
      const config = configOf(changes);
      const peers = offers.map((bytes, i) => peerOf(`p${i}`, bytes, { blockMs: ms[i] ?? 10 }));
      const { view, missing } = plan(config, peers);
      if (view === null) {
        seen.refusals++;
        return assert.match(
          missing,
          /^stage \d+ of \d+ \(.*\) needs \d+ MB and p\d has \d+ MB for it; \d+ MB are missing$|^The model.* missing/,
        );
      }
      seen.plans++;
      const fit = createFit(specOf(config, VOCABULARY), config);
      for (const peer of peers) {
        assert.ok(roomBeside(fit, view.stages, peer) >= 0, `${peer.id} holds more than its ${roomOf(peer)}`);
        const held = stagesOf(view, peer.id);
        const sum = held.reduce((total, stage) => total + fit.bytes(stage, runOf(stage), peer), 0);
        assert.equal(roomBeside(fit, view.stages, peer), roomOf(peer) - sum);
      }
      assert.deepEqual([view.stages[0]!.firstLayer, view.stages.at(-1)!.endLayer], [0, 4]);
      for (const stage of view.stages) assert.ok(stage.replicas.some((it) => it.microBatches.length > 0));
    },
  );
  fc.assert(property, { seed: 8, numRuns: 300 });
  assert.ok(seen.plans > 50 && seen.refusals > 50, `one-sided: ${JSON.stringify(seen)}`);
});

Deno.test("fit: a further stage needs room beside what is held", () => {
  const config = configOf({ n_stage: 2 });
  const view = planned(config, [peerOf("a", 1e9), peerOf("b", 1e9)]);
  const fit = createFit(specOf(config, VOCABULARY), config);
  const [first, second] = view.stages;
  const needed = fit.bytes(first!, runOf(first!), peerOf("a", 0)) +
    fit.bytes(second!, runOf(second!), peerOf("a", 0));
  const roomy = (bytes: number) => hasRoom(fit, view.stages, { stage: second!, peer: peerOf("a", bytes) });
  assert.deepEqual([roomy(offering(needed)), roomy(offering(needed) - 2)], [true, false]);
});

Deno.test("fit: who has no room for a stage learns none, and causes no new cut", () => {
  const run = RunHarness.training(["a"], { n_stage: 1, shadows: true });
  run.join("tiny", { memoryBytes: 2_000 });
  run.commit();
  run.commit();
  assert.deepEqual([run.layout(), run.sent("snapshot")], [["a:01"], []]);
  run.join("late");
  run.commit();
  assert.deepEqual(run.layout(), ["a:01 late?"]);
  const cut = RunHarness.training(["a"]);
  cut.join("tiny", { memoryBytes: 2_000 });
  cut.commit();
  assert.deepEqual([cut.state.replanDue, cut.layout()], [null, ["a:01"]]);
});
