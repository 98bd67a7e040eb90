// A peer's part of a frozen base: only the bytes of its own stages are asked for, each once, from the other place first; what is wrong,
// short, long or not what the run names is refused, and memory is given back with the last stage that needs it.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { PeerBase } from "./base.ts";
import { type BaseOptions, BaseTensors } from "./base_tensors.ts";
import { toHalf } from "./codec/f16.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { baseSpec, specOf, splitLayers, stageLayout } from "./model/layout.ts";
import { loraTargets } from "./model/lora.ts";
import { baseTensors, baseText } from "./model/lora_base.ts";
import { readConfig } from "./model/config.ts";
import { Requests, sourcesOf } from "./requests.ts";
import type { BaseDtype, BaseList, SourceTensor, Turned } from "./wire/base.ts";
import { ShoalError } from "./wire/errors.ts";

const SHAPE = { n_layer: 3, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 12, block_size: 4 };
const URL_OF_MODEL = "https://models.example/small/model.safetensors";

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

/** Multiples of 1/8 up to 4 are the same in all three types. */
const valueAt = (tensor: number, i: number) => ((tensor * 31 + i * 7) % 65 - 32) / 8;

interface World {
  options: BaseOptions;
  list: BaseList;
  /** Our file and the other place's, with their headers' bytes in front. */
  file: Uint8Array<ArrayBuffer>;
  elsewhere: Uint8Array<ArrayBuffer>;
  /** "file 40-99" or "elsewhere 16-47". */
  asked: string[];
  notes: string[];
  values: Map<string, number[]>;
}

function bytesOf(values: number[], dtype: BaseDtype): Uint8Array {
  if (dtype === "F32") return new Uint8Array(Float32Array.from(values).buffer);
  if (dtype === "F16") return new Uint8Array(Uint16Array.from(values, toHalf).buffer);
  const words = new Uint32Array(Float32Array.from(values).buffer);
  return new Uint8Array(Uint16Array.from(words, (word) => word >>> 16).buffer);
}

/** `source`: the type in which the other place has it; absent, there is none. */
function worldOf(source?: BaseDtype): World {
  const config = readConfig({ ...SHAPE, lora_rank: 2, lora_targets: "q_proj,down_proj" });
  const tensors: BaseList["tensors"] = [], others: SourceTensor[] = [];
  const [file, elsewhere]: [number[], number[]] = [Array(40).fill(0), Array(16).fill(0)];
  const values = new Map<string, number[]>();
  baseTensors(specOf(config, 5)).forEach(({ name, shape, size }, t) => {
    const own = Array.from({ length: size }, (_, i) => valueAt(t, i));
    values.set(name, own);
    const bytes = bytesOf(own, "F32"), other = bytesOf(own, source ?? "F32");
    tensors.push({ name, shape, begin: file.length, end: file.length + bytes.length, sha256: sha256(bytes) });
    file.push(...bytes);
    const place = {
      file: 0,
      dtype: source ?? "F32",
      begin: elsewhere.length,
      end: elsewhere.length + other.length,
    };
    others.push({ name, ...place, sha256: sha256(other) });
    elsewhere.push(...other);
  });
  const hash = sha256(new TextEncoder().encode(baseText(tensors)));
  const list: BaseList = {
    ...{ hash, bytes: file.length, tensors },
    ...(source === undefined ? {} : { source: { urls: [URL_OF_MODEL], tensors: others } }),
  };
  const spec = specOf({ ...config, lora_base: hash }, 5);
  const world: World = {
    ...{
      list,
      values,
      file: Uint8Array.from(file),
      elsewhere: Uint8Array.from(elsewhere),
      asked: [],
      notes: [],
    },
    options: {
      spec,
      fetch: (path, init) =>
        Promise.resolve(path === "/api/base" ? Response.json(world.list) : answer("file", init)),
      fetchUrl: (url, init) => {
        assert.equal(url, URL_OF_MODEL);
        assert.deepEqual([init.credentials, new Headers(init.headers).has("authorization")], ["omit", false]);
        return Promise.resolve(answer("elsewhere", init));
      },
      read: (response) => response.arrayBuffer(),
      onNote: (text) => void world.notes.push(text),
    },
  };
  const answer = (from: "file" | "elsewhere", init: RequestInit | undefined) => {
    const range = new Headers(init?.headers).get("range")!.replace("bytes=", "");
    world.asked.push(`${from} ${range}`);
    const [first, last] = range.split("-").map(Number);
    return new Response(world[from].slice(first, last! + 1), { status: 206 });
  };
  return world;
}

function stagesOf(world: World, weights: number[]) {
  return splitLayers(world.options.spec, weights);
}

/** Bytes of the tensors of a stage in a file, as ranges that touch no other. */
function rangesOf(world: World, names: readonly string[]): string[] {
  const own = world.list.tensors.filter(({ name }) => names.includes(name));
  const ranges: [number, number][] = [];
  for (const { begin, end } of own) {
    if (ranges.at(-1)?.[1] === begin) ranges.at(-1)![1] = end;
    else ranges.push([begin, end]);
  }
  return ranges.map(([begin, end]) => `file ${begin}-${end - 1}`);
}

function namesOf(world: World, stage: Parameters<typeof stageLayout>[1]): string[] {
  return stageLayout(baseSpec(world.options.spec), stage).tensors.map(({ name }) => name);
}

async function assertStage(world: World, base: PeerBase, stage: Parameters<typeof stageLayout>[1]) {
  const { spec } = world.options;
  const { weights, frozen } = await base.stage({ spec, stage });
  for (const { name, offset, size } of stageLayout(baseSpec(spec), stage).tensors) {
    assert.deepEqual([...weights.subarray(offset, offset + size)], world.values.get(name), name);
  }
  const expected = loraTargets(spec, stage).flatMap(({ name }) => world.values.get(name)!);
  assert.deepEqual([...frozen], expected);
  return weights;
}

Deno.test("base: a stage's own bytes are asked for and no others, in as few ranges as there are gaps", async () => {
  const world = worldOf();
  const base = new PeerBase(world.options);
  const [, middle] = stagesOf(world, [1, 1, 1]);
  await assertStage(world, base, middle!);
  assert.deepEqual(world.asked, rangesOf(world, namesOf(world, middle!)));
  assert.equal(world.asked.length, 1);
});

Deno.test("base: when layers move, what is here is kept and only the rest is fetched; then what is not needed goes", async () => {
  const world = worldOf();
  const base = new PeerBase(world.options);
  const [first] = stagesOf(world, [2, 1]);
  const weights = await assertStage(world, base, first!);
  // As the engine does: its matrices are merged in place, which is not the base any more.
  for (const { baseOffset } of loraTargets(world.options.spec, first!)) weights[baseOffset] = 99;
  world.asked.length = 0;
  const [, second] = stagesOf(world, [1, 2]);
  await assertStage(world, base, second!);
  const here = new Set(namesOf(world, first!));
  assert.deepEqual(world.asked, rangesOf(world, namesOf(world, second!).filter((name) => !here.has(name))));
  base.keep([second!]);
  assert.deepEqual(base.names().sort(), namesOf(world, second!).sort());
  base.keep([]);
  assert.deepEqual(base.names(), []);
});

for (const dtype of ["F32", "F16", "BF16"] as const) {
  Deno.test(`base: ${dtype} from another place, without asking the coordinator for a byte`, async () => {
    const world = worldOf(dtype);
    const base = new PeerBase(world.options);
    const [first] = stagesOf(world, [1, 1, 1]);
    await assertStage(world, base, first!);
    assert.ok(
      world.asked.length >= 1 && world.asked.every((it) => it.startsWith("elsewhere")),
      world.asked.join(),
    );
    assert.deepEqual(world.notes, []);
  });
}

Deno.test("base: matrices that lie turned elsewhere, two in one, are turned back, and what holds two is fetched once", async () => {
  const world = worldOf("F16");
  const { tensors } = world.list.source!;
  for (const layer of [0, 1, 2]) {
    const names = ["k", "v"].map((letter) => `model.layers.${layer}.self_attn.${letter}_proj.weight`);
    const [rows, cols] = world.list.tensors.find(({ name }) => name === names[0])!.shape as [number, number];
    const ours = names.map((name) => world.values.get(name)!);
    // [in, out of both]: row i has column i of the one, then of the other.
    const stored = Array.from({ length: cols * 2 * rows }, (_, at) => {
      const [i, o] = [Math.floor(at / (2 * rows)), at % (2 * rows)];
      return ours[Math.floor(o / rows)]![(o % rows) * cols + i]!;
    });
    const places = names.map((name) => tensors.find((it) => it.name === name)!);
    const { begin } = places[0]!;
    world.elsewhere.set(bytesOf(stored, "F16"), begin);
    const range = { begin, end: places[1]!.end, sha256: sha256(bytesOf(stored, "F16")) };
    places.forEach((place, part) =>
      Object.assign(place, { ...range, turned: { into: cols, out: 2 * rows, part } })
    );
  }
  const [, middle] = stagesOf(world, [1, 1, 1]);
  await assertStage(world, new PeerBase(world.options), middle!);
  assert.equal(world.asked.length, 1, world.asked.join());
  assert.deepEqual(world.notes, []);
});

Deno.test("base: the other place lacks some, or fails in any way: the coordinator has it, and is asked from then on", async () => {
  const ways: [string, (world: World) => void, RegExp | null][] = [
    ["some only", (world) => world.list.source!.tensors.splice(2, 4), null],
    ["what is not ours, under its own hash", (world) => {
      const place = world.list.source!.tensors[0]!;
      world.elsewhere[place.begin]! ^= 1;
      place.sha256 = sha256(world.elsewhere.subarray(place.begin, place.end));
    }, /has hash/],
    ["silence", (world) => {
      world.options.silenceMs = 50;
      world.options.fetchUrl = (_, { signal }) =>
        new Promise((_, reject) => signal!.addEventListener("abort", () => reject(signal!.reason)));
    }, /nothing came for 0.05 s/],
    ["a wrong bit", (world) => void (world.elsewhere[20]! ^= 1), /has hash/],
    [
      "not there",
      (world) => void (world.options.fetchUrl = () => Promise.resolve(new Response("", { status: 404 }))),
      /404/,
    ],
    ["all of it", (world) => {
      world.options.fetchUrl = () => Promise.resolve(new Response(world.elsewhere.slice()));
    }, /status 200/],
    ["too little", (world) => {
      world.options.fetchUrl = () => Promise.resolve(new Response(new Uint8Array(3), { status: 206 }));
    }, /3 came/],
    [
      "no connection",
      (world) => void (world.options.fetchUrl = () => Promise.reject(new TypeError("no route"))),
      /no route/,
    ],
  ];
  for (const [how, spoil, note] of ways) {
    const world = worldOf("BF16");
    spoil(world);
    const base = new PeerBase(world.options);
    const [first, second] = stagesOf(world, [1, 2]);
    await assertStage(world, base, first!);
    const before = world.asked.length;
    await assertStage(world, base, second!);
    assert.ok(world.asked.some((it) => it.startsWith("file")), how);
    if (note === null) continue;
    assert.equal(world.notes.length, 1, how);
    assert.match(world.notes[0]!, note);
    assert.doesNotMatch(world.notes[0]!, /joins again/);
    assert.ok(world.asked.slice(before).every((it) => it.startsWith("file")), how);
  }
});

Deno.test("base: an endless answer is not read to its end", async () => {
  const world = worldOf();
  let given = 0;
  const endless = new ReadableStream({
    pull(controller) {
      given += 1024;
      controller.enqueue(new Uint8Array(1024));
    },
  });
  const fetch: BaseOptions["fetch"] = (path, init) =>
    path === "/api/base"
      ? world.options.fetch(path, init)
      : Promise.resolve(new Response(endless, { status: 206 }));
  const [first] = stagesOf(world, [1, 1, 1]);
  await refused(new PeerBase({ ...world.options, fetch }), first!, /more than the \d+ bytes came/);
  assert.ok(given < 64 * 1024, `${given} bytes`);
});

async function refused(
  base: PeerBase,
  stage: Parameters<typeof stageLayout>[1],
  wanted: RegExp,
  spec = worldOf().options.spec,
) {
  await assert.rejects(
    base.stage({ spec, stage }),
    (error) => error instanceof ShoalError && error.code === "bad-state" && wanted.test(error.message),
    String(wanted),
  );
}

Deno.test("base: what the coordinator sends must have the list's hashes, and the list the hash that the run names", async () => {
  const stage = splitLayers(worldOf().options.spec, [1, 1, 1])[0]!;
  const cases: [RegExp, (world: World) => void][] = [
    [/has hash .*expected/, (world) => void (world.file[41]! ^= 1)],
    [/the run's adapters belong to/, (world) => world.list = { ...world.list, hash: "0".repeat(64) }],
    [/not of this model/, (world) => world.list.tensors.pop()],
    [/not of this model/, (world) => void (world.list.tensors[2]!.name = "model.other")],
    [/list has hash/, (world) => void (world.list.tensors[2]!.sha256 = "0".repeat(64))],
    [/overlaps another tensor/, (world) => void (world.list.tensors[1]!.begin -= 4)],
    [/leaves the \d+ bytes/, (world) => void (world.list.bytes -= 1)],
    [/which is not its shape/, (world) => void (world.list.tensors.at(-1)!.end -= 4)],
    [/bytes: /, (world) => void (world.list.bytes = 2 ** 50)],
    [/sha256/, (world) => void (world.list.tensors[0]!.sha256 = "x")],
    [/shape/, (world) => void (world.list.tensors[0]!.shape = [2 ** 40])],
  ];
  for (const [wanted, spoil] of cases) {
    const world = worldOf();
    spoil(world);
    await refused(new PeerBase(world.options), stage, wanted);
  }
  const many = worldOf();
  many.list.tensors = Array.from({ length: 10_000 }, () => many.list.tensors[0]!);
  await refused(new PeerBase(many.options), stage, /tensors: /);
});

Deno.test("base: another place must be encrypted or this computer, and have the sizes of the tensors", async () => {
  const stage = splitLayers(worldOf().options.spec, [1, 1, 1])[0]!;
  const cases: [RegExp, (world: World) => void][] = [
    [/urls/, (world) => world.list.source!.urls = ["http://192.168.0.1/model.safetensors"]],
    [/urls/, (world) => world.list.source!.urls = ["https://me:secret@models.example/m.safetensors"]],
    [/urls/, (world) => world.list.source!.urls = ["file:///etc/passwd"]],
    [/elsewhere is no tensor/, (world) => void (world.list.source!.tensors[0]!.file = 1)],
    [/elsewhere is no tensor/, (world) => void (world.list.source!.tensors[0]!.name = "model.other")],
    [/elsewhere is no tensor/, (world) => void (world.list.source!.tensors[3]!.end += 2)],
    [/elsewhere is no tensor/, (world) => turnedBy(world, { into: 8, out: 8, part: 1 })],
    [/elsewhere is no tensor/, (world) => turnedBy(world, { into: 4, out: 16, part: 0 })],
    [/part/, (world) => turnedBy(world, { into: 8, out: 8, part: 9 })],
    [/one name/, (world) => void (world.list.source!.tensors[0]!.name = world.list.source!.tensors[1]!.name)],
  ];
  for (const [wanted, spoil] of cases) {
    const world = worldOf("F16");
    spoil(world);
    await refused(new PeerBase(world.options), stage, wanted);
  }
});

/** Of the first matrix of queries, [8, 8]. */
function turnedBy(world: World, turned: Turned): void {
  world.list.source!.tensors.find(({ name }) => name.endsWith("q_proj.weight"))!.turned = turned;
}

Deno.test("base: weights that a run begins with, under the hash that its view names", async () => {
  const world = worldOf("BF16");
  const { options, list } = world;
  const spec = baseSpec(options.spec);
  const [, stage] = splitLayers(spec, [1, 2]);
  const { tensors, size } = stageLayout(spec, stage!);
  const weights = new Float32Array(size);
  await new BaseTensors({ ...options, spec, hash: list.hash }).fetch(tensors, weights);
  for (const { name, offset, size } of tensors) {
    assert.deepEqual([...weights.subarray(offset, offset + size)], world.values.get(name), name);
  }
  assert.ok(world.asked.every((it) => it.startsWith("elsewhere")), world.asked.join());
  const other = new BaseTensors({ ...options, spec, hash: "1".repeat(64) });
  await assert.rejects(other.fetch(tensors, weights), /the run began with 1{64}/);
});

Deno.test("base: a list that could not be had is asked for again", async () => {
  const world = worldOf();
  const stage = stagesOf(world, [1, 1, 1])[1]!;
  let fails = true;
  const fetch: BaseOptions["fetch"] = (path, init) =>
    fails ? Promise.reject(new ShoalError("bad-state", "away")) : world.options.fetch(path, init);
  const base = new PeerBase({ ...world.options, fetch });
  await assert.rejects(base.stage({ spec: world.options.spec, stage }), /away/);
  fails = false;
  await assertStage(world, base, stage);
});

Deno.test("base: two who need a stage at once fetch it once", async () => {
  const world = worldOf();
  const base = new PeerBase(world.options);
  const stage = stagesOf(world, [1, 1, 1])[1]!;
  await Promise.all([assertStage(world, base, stage), assertStage(world, base, stage)]);
  assert.equal(world.asked.length, 1);
});

Deno.test("base: a learner's part comes with its state, so that its engine waits for nothing", async () => {
  const world = worldOf();
  const { spec } = world.options;
  const stage = stagesOf(world, [1, 1, 1])[1]!;
  const asked: string[] = [];
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, async (request) => {
    const { pathname } = new URL(request.url);
    asked.push(`${pathname} ${request.headers.get("x-shoal-ticket")}`);
    if (pathname.startsWith("/api/state/")) return new Response("the state");
    const headers = { range: request.headers.get("range") ?? "" };
    return await world.options.fetch(pathname, { headers });
  });
  try {
    const requests = new Requests({
      ...{ origin: `http://127.0.0.1:${server.addr.port}`, token: "t", over: () => false },
      ...{ identity: () => ({ peer: "a", ticket: "secret" }), back: () => Promise.resolve(false) },
    });
    const sources = sourcesOf(requests, spec, {
      createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    });
    const bytes = await sources.learn(3, { ...stage, stage: stage.index, hash: "h", bytes: 9 });
    assert.equal(new TextDecoder().decode(bytes), "the state");
    assert.deepEqual(asked.toSorted(), [
      "/api/base secret",
      "/api/base/file secret",
      "/api/state/3/1/h secret",
    ]);
    const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
    const engine = await sources.createEngine({ spec, stage, batchSize: 1, slots: 1, ...codecs });
    assert.match(engine.name, /^cpu .*LoRA of rank 2$/);
    assert.equal(asked.length, 3);
    engine.destroy();
  } finally {
    await server.shutdown();
  }
});
