// Opening what a peer computes with: every engine by its name, the way down when WebGPU is missing, and a verdict that is
// measured once and then remembered. The GPU is the real one of this machine where a test needs one.
import assert from "node:assert/strict";
import { type Compute, openCompute } from "./compute.ts";
import type { StageBuild } from "./engine/engine.ts";
import { verdictNote } from "./engine/choose.ts";
import { openDenoDevice } from "./gpu/provider_deno.ts";
import { type Notes } from "./store/notes.ts";
import { ShoalError } from "./wire/errors.ts";

const BUILD: StageBuild = {
  spec: {
    ...{ vocab_size: 5, block_size: 4, n_layer: 1, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 6 },
    ...{ tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
  },
  stage: { index: 0, firstLayer: 0, endLayer: 1, embed: true, head: true },
  ...{ batchSize: 1, slots: 1, codecForward: "raw32", codecBackward: "raw32" },
};

function noGpu(): Promise<never> {
  return Promise.reject(new ShoalError("no-adapter", "no WebGPU adapter; install one"));
}

/** Builds a stage with it, so that a name alone is not enough. */
async function engineOf(compute: Compute): Promise<string> {
  const engine = await compute.createEngine(BUILD);
  const { name } = engine;
  engine.destroy();
  compute.destroy();
  return name;
}

Deno.test("an engine that was named is opened without a look at WebGPU", async () => {
  const wasm = await openCompute("tfjs-wasm", { openGpu: noGpu });
  assert.equal(wasm.engine, "tfjs-wasm");
  assert.equal(await engineOf(wasm), "tfjs-wasm");
  const cpu = await openCompute("cpu", { openGpu: noGpu });
  assert.equal(cpu.engine, "cpu");
  assert.match(await engineOf(cpu), /^cpu/);
});

Deno.test("WebGPU that was asked for and is missing is an error; auto computes on the processor and says why", async () => {
  await assert.rejects(openCompute("wgsl", { openGpu: noGpu }), (error) => {
    return error instanceof ShoalError && error.code === "no-adapter";
  });
  const auto = await openCompute("auto", { openGpu: noGpu });
  assert.equal(auto.engine, "tfjs-wasm: no WebGPU adapter");
  assert.equal(auto.deviceLost, undefined);
  assert.equal(await engineOf(auto), "tfjs-wasm");
});

/** Notes that count, and begin with a verdict. */
class CountingNotes implements Notes {
  readonly texts = new Map<string, string>();
  readonly #first: string | null;
  asked = 0;

  constructor(first: string | null) {
    this.#first = first;
  }

  get(name: string): Promise<string | null> {
    // Other notes are of the kernels that an engine has chosen.
    const first = name.startsWith("engine ") ? this.#first : null;
    if (name.startsWith("engine ")) this.asked++;
    return Promise.resolve(this.texts.get(name) ?? first);
  }

  set(name: string, text: string): Promise<void> {
    this.texts.set(name, text);
    return Promise.resolve();
  }
}

/** The real device under another name, so that no other test's verdict is remembered for it. */
function deviceCalled(adapterName: string) {
  return async () => ({ ...await openDenoDevice(), adapterName });
}

for (const chosen of ["wgsl", "tfjs-wasm"] as const) {
  Deno.test(`a kept verdict for ${chosen} is followed without measuring, and asked for once`, async () => {
    const notes = new CountingNotes(verdictNote({ engine: chosen, why: "kept" }, Date.now()));
    const tools = { openGpu: deviceCalled(`kept ${chosen}`), notes };
    for (let join = 0; join < 2; join++) {
      const compute = await openCompute("auto", tools);
      assert.match(compute.engine, chosen === "wgsl" ? /^wgsl \(\w+\): kept$/ : /^tfjs-wasm: kept$/);
      assert.equal(compute.deviceLost !== undefined, chosen === "wgsl");
      assert.ok(compute.adapter.includes(`kept ${chosen}`));
      compute.destroy();
    }
    assert.equal(notes.asked, 1);
    assert.deepEqual([...notes.texts.keys()].filter((name) => name.startsWith("engine ")), []);
  });
}

Deno.test("without a verdict both engines are measured, and the result is kept", async () => {
  const notes = new CountingNotes(null);
  const compute = await openCompute("auto", { openGpu: deviceCalled("unknown"), notes });
  const text = [...notes.texts].find(([name]) => name.startsWith("engine "))?.[1] ?? "{}";
  const verdict = JSON.parse(text) as { engine: string; why: string };
  assert.ok(compute.engine.startsWith(verdict.engine) && compute.engine.endsWith(verdict.why));
  assert.match(verdict.why, /[\d.]+ ms a block/);
  compute.destroy();
});
