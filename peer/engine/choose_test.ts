// The choice between WebGPU and WebAssembly by measured times, what a person reads of it, and what a kept verdict may look like.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { chooseEngine, GPU_BLOCK_MS_MAX, readVerdict, verdictNote, withoutWebGpu } from "./choose.ts";

/** A number is milliseconds, a text is the failure. */
function probe(software: boolean, wgsl: number | string, tfjs: number | string) {
  const asked: string[] = [];
  const measure = (name: string, result: number | string) => () => {
    asked.push(name);
    return typeof result === "number" ? Promise.resolve(result) : Promise.reject(new Error(result));
  };
  const late = (answered: AbortSignal) => {
    asked.push("late");
    return new Promise<void>((resolve) => answered.addEventListener("abort", () => resolve()));
  };
  return { asked, software, wgsl: measure("wgsl", wgsl), tfjs: measure("tfjs", tfjs), late };
}

Deno.test("on a software adapter the quicker engine wins, and both times are told", async () => {
  const fast = await chooseEngine(probe(true, 310.26, 21));
  assert.deepEqual(fast, {
    engine: "tfjs-wasm",
    why: "21 ms a block with WebAssembly, 310.3 with WebGPU on a software adapter",
  });
  const other = await chooseEngine(probe(true, 20, 21));
  assert.deepEqual(other, {
    engine: "wgsl",
    why: "20 ms a block with WebGPU on a software adapter, 21 with WebAssembly",
  });
});

Deno.test("a software adapter that has not compiled in time loses, unless there is nothing else", async () => {
  const never = () => new Promise<number>(() => {});
  const slow = { ...probe(true, 0, 21), wgsl: never, late: () => Promise.resolve() };
  assert.deepEqual(await chooseEngine(slow), {
    engine: "tfjs-wasm",
    why: "21 ms a block with WebAssembly, WebGPU on a software adapter was not ready in time",
  });
  const alone = { ...probe(true, 5000, "no binary"), late: () => assert.fail("it was not waited for") };
  assert.equal((await chooseEngine(alone)).engine, "wgsl");
});

Deno.test("a graphics processor is taken without loading tfjs, unless a processor would be as quick", async () => {
  const usual = probe(false, GPU_BLOCK_MS_MAX, 1);
  assert.equal((await chooseEngine(usual)).engine, "wgsl");
  assert.deepEqual(usual.asked, ["wgsl"]);
  const slow = probe(false, GPU_BLOCK_MS_MAX + 1, 250);
  assert.equal((await chooseEngine(slow)).engine, "tfjs-wasm");
  assert.deepEqual(slow.asked, ["wgsl", "tfjs"]);
  assert.equal((await chooseEngine(probe(false, 900, 1000))).engine, "wgsl");
});

Deno.test("an engine that fails loses, with its reason", async () => {
  for (const software of [true, false]) {
    const noGpu = await chooseEngine(probe(software, "no shader", 5));
    assert.equal(noGpu.engine, "tfjs-wasm");
    assert.match(noGpu.why, /fails: no shader/);
  }
  const noWasm = await chooseEngine(probe(true, 5000, "no binary"));
  assert.deepEqual(noWasm, { engine: "wgsl", why: "WebAssembly fails: no binary" });
  await assert.rejects(chooseEngine(probe(true, "no shader", "no binary")), /no shader/);
});

Deno.test("a kept verdict is read back for a week, and anything else is measured again", () => {
  const verdict = { engine: "tfjs-wasm", why: "21 ms" } as const;
  const now = 1_700_000_000_000, day = 24 * 3600 * 1000;
  const note = verdictNote(verdict, now);
  assert.deepEqual(readVerdict(note, now), verdict);
  assert.deepEqual(readVerdict(note, now + 6 * day), verdict);
  assert.equal(readVerdict(note, now + 8 * day), null);
  assert.equal(readVerdict(note, now - 8 * day), null);
  const damaged = [null, "", "{", "null", "[]", '{"engine":"wgsl","why":"x"}'];
  const wrong = [{ engine: "abacus", why: "" }, { engine: "wgsl" }, { engine: "wgsl", why: "x".repeat(500) }];
  for (const text of [...damaged, ...wrong.map((part) => JSON.stringify({ ...part, at: now }))]) {
    assert.equal(readVerdict(text, now), null, String(text));
  }
});

Deno.test("a missing adapter is said in two words, another failure in its own", () => {
  assert.equal(withoutWebGpu(new ShoalError("no-adapter", "a long text")), "no WebGPU adapter");
  assert.equal(withoutWebGpu(new Error("it burns")), "no WebGPU: it burns");
});
