// What the planner is told of live peers: speeds as they are believed, links as they were measured, memory to the byte.
import assert from "node:assert/strict";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { holderBytes } from "../../peer/model/stage_memory.ts";
import { CostModel } from "../plan/planner_model.ts";
import { roomOf } from "./fit.ts";
import {
  blockMsOf,
  requestOf,
  UNKNOWN_BYTES_PER_S,
  UNKNOWN_LATENCY_MOST_S,
  UNKNOWN_LATENCY_S,
} from "./plan_request.ts";
import { type LinkRecord, type PeerRecord, zeroCounters } from "./run_state.ts";

function peerOf(id: string, changes: Partial<PeerRecord> = {}): PeerRecord {
  const about = { id, runtime: "tab" as const, adapter: "", engine: "wgsl (f32)", name: `tab of ${id}` };
  const flags = { paused: false, leaving: false, hidden: false, joinedAt: 0, heardAt: 0 };
  return { ...about, ...flags, ...zeroCounters(), blockMs: 30, memoryBytes: 8e8, ...changes };
}

function request(peers: PeerRecord[], changes: Record<string, unknown> = {}) {
  const config = readConfig({ n_layer: 4, ...changes });
  return requestOf({ config, spec: specOf(config, 50), peers });
}

function linkOf(rttMs: number, upBytesPerS: number): LinkRecord {
  return { rttMs, upBytesPerS, downBytesPerS: 0, path: "direct", open: true };
}

function near(actual: number | undefined, expected: number): void {
  assert.ok(Math.abs(actual! - expected) < 1e-12, `${actual}, not ${expected}`);
}

Deno.test("plan request: a block's time divides as the operations do; what is believed since scales the whole", () => {
  const plain = request([peerOf("a")]).peers[0]!.engines[0]!;
  for (const kind of ["forward", "backward", "weightGrad"] as const) near(plain[kind], 0.01);
  const opMs = { forward: 1, backward: 2, weightGrad: 3 };
  const split = request([peerOf("a", { opMs, slowdown: 2 })]).peers[0]!.engines[0]!;
  near(split.forward, 0.01);
  near(split.backward, 0.02);
  near(split.weightGrad, 0.03);
  assert.equal(blockMsOf(peerOf("a", { slowdown: 2 })), 60);
  // Parts that were measured as nothing say nothing.
  const none = { forward: 0, backward: 0, weightGrad: 0 };
  near(request([peerOf("a", { opMs: none })]).peers[0]!.engines[0]!.forward, 0.01);
});

Deno.test("plan request: coding is reckoned by boundary, and handing a tensor over by link", () => {
  const a = peerOf("a", { codingMs: 4, sendMs: 3, slowdown: 2, links: { b: linkOf(40, 2e6) } });
  const asked = request([a, peerOf("b")]);
  assert.equal(asked.peers[0]!.engines[0]!.coding, 0.004, "measured, whatever else is believed");
  assert.equal(asked.peers[1]!.engines[0]!.coding, undefined);
  near(asked.link("a", "b")!.latency, 0.023);
  near(asked.link("b", "a")!.latency, 0.02);
  const model = new CostModel(asked);
  const coded = ([first, end]: [number, number]) => {
    const op = model.opSeconds(0, first, end, "none");
    const plain = 0.02 * model.work(first, end);
    near(model.seconds(0, first, end, "none"), op.F + op.B + op.W);
    return [op.F - plain, op.B - plain, op.W - plain].map((it) => Math.round(1e6 * it) / 1e3);
  };
  assert.deepEqual([[0, 4], [0, 2], [1, 3]].map((range) => coded(range as [number, number])), [
    [0, 0, 0],
    [2, 2, 0],
    [4, 4, 0],
  ]);
});

Deno.test("plan request: a codec for each link is asked for only if the run says so, and has its memory", () => {
  const stage = { index: 0, firstLayer: 0, endLayer: 2, embed: true, head: false };
  const bytes = (changes: Record<string, unknown>) =>
    request([peerOf("a")], changes).memory(stage, { slots: 1, recompute: "none" }, "wgsl");
  assert.equal(request([peerOf("a")]).codecs, undefined);
  assert.equal(request([peerOf("a")], { codec_per_link: true }).codecs, "auto");
  assert.equal(bytes({ codec_per_link: true }), bytes({ codec_forward: "f16s", codec_backward: "f16s" }));
  assert.ok(bytes({ codec_per_link: true }) > bytes({}));
});

Deno.test("plan request: names, room and background are those of the peers", () => {
  const { peers } = request([peerOf("a", { hidden: true }), peerOf("b", { name: "" })]);
  assert.deepEqual(peers.map(({ name, hidden }) => [name, hidden]), [["tab of a", true], ["b", false]]);
  assert.equal(peers[0]!.memoryBytes, roomOf(peerOf("a")));
});

Deno.test("plan request: links are asked of both ends, and have a sane default until they are measured", () => {
  const a = peerOf("a", { links: { b: linkOf(40, 2e6), c: linkOf(0, 0) } });
  const b = peerOf("b", { links: { a: linkOf(60, 5e5) } });
  const { link } = request([a, b, peerOf("c"), peerOf("d")]);
  assert.deepEqual(link("a", "b"), { latency: 0.025, bytesPerS: 2e6 });
  assert.deepEqual(link("b", "a"), { latency: 0.025, bytesPerS: 5e5 });
  assert.deepEqual(link("c", "d"), {
    ...{ latency: UNKNOWN_LATENCY_S, latencyMost: UNKNOWN_LATENCY_MOST_S, bytesPerS: UNKNOWN_BYTES_PER_S },
  });
  assert.equal(link("a", "gone"), null);
  // Not better than the links of either end that were tried, or peers would move to try every other one.
  const supposed = { latency: 0.02, latencyMost: UNKNOWN_LATENCY_MOST_S, bytesPerS: 2e6 };
  assert.deepEqual([link("a", "d"), link("d", "a")], [supposed, {
    ...supposed,
    bytesPerS: UNKNOWN_BYTES_PER_S,
  }]);
  assert.equal(link("d", "b")!.latency, 0.03);
  const slow = request([peerOf("a", { links: { b: linkOf(10, 3) } }), peerOf("b")]).link("a", "b")!;
  assert.ok(slow.bytesPerS >= 1e4, "one bad moment would rule the link out for ever");
});

Deno.test("plan request: memory is what the engine allocates", () => {
  const config = readConfig({ n_layer: 4 });
  const spec = specOf(config, 50);
  const stage = { index: 0, firstLayer: 0, endLayer: 2, embed: true, head: false };
  const run = { slots: 3, recompute: "block" as const };
  for (const [engine, kind] of [["wgsl (f32)", "wgsl"], ["cpu", "cpu"]] as const) {
    const expected = holderBytes(stage, run, { spec, config, kind });
    assert.equal(request([peerOf("a")]).memory(stage, run, engine), expected);
  }
});

Deno.test("plan request: a tab in the background need not be alone while others can hold the stages that are asked for", () => {
  const alone = (hidden: boolean[], n_stage: number) =>
    request(hidden.map((it, i) => peerOf(`p${i}`, { hidden: it })), { n_stage }).hiddenAlone;
  assert.equal(alone([true, false], 0), false);
  assert.equal(alone([true, false], 2), true);
  assert.equal(alone([true, false, false], 2), false);
  assert.equal(alone([true], 0), true);
});

Deno.test("plan request: a new cut costs a standstill and the way of the largest stage, there and back", () => {
  const { cutSeconds } = request([peerOf("a")], { n_embd: 256, n_head: 4, n_kv_head: 4 });
  const stages = (ends: number[]) => ({
    stages: ends.map((endLayer, index) => ({
      ...{ index, firstLayer: ends[index - 1] ?? 0, endLayer, embed: index === 0, head: endLayer === 4 },
      ...{ replicas: [], shadows: [], inflight: 1, recompute: "none" as const, bytes: 0 },
    })),
  });
  const [whole, halves] = [cutSeconds!(stages([4])), cutSeconds!(stages([2, 4]))];
  assert.ok(halves > 2 && whole > halves, `${whole} s for one stage, ${halves} s for two`);
});
