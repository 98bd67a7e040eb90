// What a peer keeps of a frozen base from one session to the next: what it had of the same base is not asked for again, what no stage
// needs any more is let go, and of another base nothing is believed.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { KeptBase, PeerBase } from "./base.ts";
import type { BaseOptions } from "./base_tensors.ts";
import { baseSpec, specOf, splitLayers, stageLayout } from "./model/layout.ts";
import { baseTensors, baseText } from "./model/lora_base.ts";
import { readConfig } from "./model/config.ts";
import type { BaseList } from "./wire/base.ts";

const SHAPE = { n_layer: 3, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 12, block_size: 4 };
const CONFIG = readConfig({ ...SHAPE, lora_rank: 2, lora_targets: "q_proj,down_proj" });

const sha256 = (bytes: Uint8Array | string) => createHash("sha256").update(bytes).digest("hex");

/** A base whose tensors are full of one number each, and who was asked for what of it. */
function worldOf(shift: number) {
  const tensors: BaseList["tensors"] = [], pieces: Uint8Array[] = [];
  let at = 0;
  baseTensors(specOf(CONFIG, 5)).forEach(({ name, shape, size }, t) => {
    const bytes = new Uint8Array(new Float32Array(size).fill(t + shift).buffer);
    tensors.push({ name, shape, begin: at, end: at + bytes.length, sha256: sha256(bytes) });
    pieces.push(bytes);
    at += bytes.length;
  });
  const file = new Uint8Array(pieces.flatMap((piece) => [...piece]));
  const hash = sha256(baseText(tensors)), asked: string[] = [];
  const list: BaseList = { hash, bytes: file.length, tensors };
  const spec = specOf({ ...CONFIG, lora_base: hash }, 5);
  const options: BaseOptions = {
    spec,
    fetch: (path, init) => {
      asked.push(path);
      if (path === "/api/base") return Promise.resolve(Response.json(list));
      const [, begin, end] = /bytes=(\d+)-(\d+)/.exec(new Headers(init?.headers).get("range")!)!;
      return Promise.resolve(new Response(file.slice(Number(begin), Number(end) + 1), { status: 206 }));
    },
    read: (response) => response.arrayBuffer(),
  };
  const stages = splitLayers(spec, [1, 1, 1]);
  return { options, spec, asked, stages };
}

Deno.test("base: a peer that joins its run again fetches nothing twice, and keeps no more than its stages need", async () => {
  const { options, spec, asked, stages } = worldOf(1), kept = new KeptBase();
  const before = new PeerBase(options, kept);
  const first = await before.stage({ spec, stage: stages[1]! });
  await before.stage({ spec, stage: stages[0]! });
  const count = asked.length;
  const after = new PeerBase(options, kept);
  const again = await after.stage({ spec, stage: stages[1]! });
  assert.equal(asked.length, count, "it was fetched again");
  assert.deepEqual([again.weights, again.frozen], [first.weights, first.frozen]);
  after.keep([stages[1]!]);
  const names = stageLayout(baseSpec(spec), stages[1]!).tensors.map(({ name }) => name);
  assert.deepEqual(after.names().toSorted(), names.toSorted());
  kept.forget();
  await new PeerBase(options, kept).stage({ spec, stage: stages[1]! });
  assert.ok(asked.length > count);
});

Deno.test("base: another run's base has nothing of what is kept", async () => {
  const kept = new KeptBase(), [one, other] = [worldOf(1), worldOf(2)];
  await new PeerBase(one.options, kept).stage({ spec: one.spec, stage: one.stages[1]! });
  const { weights } = await new PeerBase(other.options, kept).stage({
    spec: other.spec,
    stage: other.stages[1]!,
  });
  assert.ok(other.asked.length > 0 && weights.length > 0);
  assert.equal(kept.of(one.spec.lora!.base!).size, 0);
});
