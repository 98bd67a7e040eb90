// A model that is imported from an address is the one that its folder holds, also over a line that breaks; a server that lies, sends too
// much, stays silent or leads astray is refused by name, with bounded memory, and leaves nothing behind.
import assert from "node:assert/strict";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { inTempFolder } from "../../test/support/checkpoint.ts";
import { charTokenizerJson, drawLlama, writeLlama } from "../../test/support/llama.ts";
import { type Asked, type ModelServer, serveModel } from "../../test/support/model_server.ts";
import { SOURCE_NAME } from "../store/base_source.ts";
import { readCheckpoint, stageStateOf } from "../store/checkpoints.ts";
import { importModel } from "./import_model.ts";
import { PIECE_BYTES } from "./model_place.ts";
import { ModelSource } from "./model_source.ts";
import { UrlPlace } from "./model_url.ts";

const VOCAB = [..."\n abcdefgh"];
const SHAPE = {
  ...{ vocab_size: VOCAB.length, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 16 },
  ...{ rms_norm_eps: 1e-5, rope_theta: 10_000, tie_word_embeddings: false },
};
const IMPATIENT = { pauseMs: 1 };

type Instead = NonNullable<Parameters<typeof serveModel>[1]>;

/** A model's folder on a server that behaves so. */
async function withModel(
  work: (server: ModelServer, folder: string) => Promise<void>,
  instead?: Instead,
  shards = 2,
): Promise<void> {
  await inTempFolder(async (folder) => {
    const model = `${folder}/model`, tokenizer = charTokenizerJson(VOCAB);
    await writeLlama(model, { shape: SHAPE, weights: drawLlama(SHAPE, 5), dtype: "BF16", shards, tokenizer });
    await using server = serveModel(model, instead);
    await work(server, folder);
  });
}

const bring = (from: string, out: string) => importModel({ from, out, config: {}, url: IMPATIENT });

/** The whole state, and what is said of the files. */
async function contentOf(path: string): Promise<string[]> {
  const checkpoint = await readCheckpoint(path);
  const source = checkpoint.files.find(({ name }) => name === SOURCE_NAME)!;
  const state = stateHash(stageStateOf(checkpoint, wholeModel(checkpoint.manifest.spec)));
  return [state, new TextDecoder().decode(source.bytes)];
}

async function refused(work: () => Promise<unknown>, wanted: RegExp, code: ErrorCode = "bad-model") {
  await assert.rejects(
    work,
    (error) => {
      if (!(error instanceof ShoalError)) throw error;
      assert.match(error.message, wanted);
      return error.code === code;
    },
  );
}

/** Whether a part of a tensor is asked for, and not a header. */
const isData = ({ range }: Asked) => range !== null && range.begin > 8;

Deno.test("import from an address: the same checkpoint as from the folder, whether as shards or as one file", async () => {
  for (const shards of [1, 2]) {
    await withModel(
      async ({ url, asked }, folder) => {
        const near = await contentOf((await bring(`${folder}/model`, `${folder}/near`)).path);
        assert.deepEqual(await contentOf((await bring(url, `${folder}/far`)).path), near);
        // Of no file more than its headers, and each tensor once.
        const bytes = asked.filter(isData).reduce((sum, { range }) => sum + range!.end - range!.begin, 0);
        const { tensors } = JSON.parse(near[1]!);
        const held = tensors.reduce((sum: number, it: Asked["range"]) => sum + it!.end - it!.begin, 0);
        const headers = asked.filter(({ range }) => range?.begin === 8).length;
        assert.deepEqual([bytes, headers], [held, shards]);
        if (shards > 1) return;
        const single = `${url}model.safetensors`;
        assert.deepEqual(await contentOf((await bring(single, `${folder}/single`)).path), near);
      },
      undefined,
      shards,
    );
  }
});

Deno.test("import from an address: a line that breaks is taken up again where it broke", async () => {
  let breaks = 0;
  const once = new Set<string>();
  const breaking: Instead = (asked, usual) => {
    const key = JSON.stringify(asked);
    if (once.has(key)) return null;
    once.add(key);
    breaks++;
    if (!isData(asked)) return Promise.resolve(new Response("later", { status: 503 }));
    return usual().then(async (response) => {
      const bytes = new Uint8Array(await response.arrayBuffer());
      return new Response(bytes.subarray(0, bytes.length >> 1), response);
    });
  };
  await withModel(async ({ url }, folder) => {
    const near = await contentOf((await bring(`${folder}/model`, `${folder}/near`)).path);
    assert.deepEqual(await contentOf((await bring(url, `${folder}/far`)).path), near);
    assert.ok(breaks > 10, String(breaks));
  }, breaking);
});

/** What the server does instead, and what is said of it. */
const HOSTILE: [string, Instead, RegExp][] = [
  ["has nothing", () => Promise.resolve(new Response("no", { status: 404 })), /there is neither/],
  ["wants a password", () => Promise.resolve(new Response("no", { status: 401 })), /it answers 401$/],
  [
    "sends whole files",
    ({ name }, usual) => name.endsWith(".safetensors") ? usual().then((it) => new Response(it.body)) : null,
    /answers with the whole file where a part is asked for/,
  ],
  ["is always busy", () => Promise.resolve(new Response("no", { status: 503 })), /it answers 503$/],
  [
    "ends every body too early",
    (asked, usual) => isData(asked) ? usual().then((it) => new Response("", it)) : null,
    /it cannot be read: it ends \d+ bytes too early/,
  ],
  [
    "sends more than was asked for",
    (asked, usual) =>
      isData(asked)
        ? usual().then(async (it) =>
          new Response(new Uint8Array([...new Uint8Array(await it.arrayBuffer()), 1]), it)
        )
        : null,
    /more bytes come than were asked for/,
  ],
  ["says that another part comes", saying(() => "bytes 5-6/4000"), /it answers with "bytes 5-6\/4000"/],
  [
    "says that less comes",
    saying((it) => it.replace(/-\d+/, "-0").replace(/ \d+/, " 1")),
    /it answers with "bytes 1-0/,
  ],
  ["says no size", saying((it) => it.replace(/\d+$/, "*")), /it answers with/],
  ["claims to be larger", saying((it) => it.replace(/\d+$/, "999999999999")), /follow the last tensor/],
  [
    "changes its size",
    saying((it) => it.startsWith("bytes 8-") ? it.replace(/\d+$/, "999999") : it),
    /it had \d+ bytes and has 999999 now/,
  ],
  [
    "has no end of a configuration",
    ({ name }) => name === "config.json" ? Promise.resolve(new Response(endless())) : null,
    /more than the 1048576 bytes come/,
  ],
  [
    "has another kind of model",
    ({ name }) => name === "config.json" ? Promise.resolve(Response.json({ model_type: "mamba" })) : null,
    /mamba/,
  ],
  [
    "leads where others can listen in",
    () => Promise.resolve(Response.redirect("http://models.example/m/", 302)),
    /it leads to "http:\/\/models.example\/m\/", which is not asked/,
  ],
];

function saying(range: (usual: string) => string): Instead {
  return (asked, usual) =>
    asked.range === null ? null : usual().then((it) => {
      const headers = { "content-range": range(it.headers.get("content-range") ?? "") };
      return new Response(it.body, { status: it.status, headers });
    });
}

function endless(): ReadableStream {
  return new ReadableStream({ pull: (controller) => controller.enqueue(new Uint8Array(1 << 16).fill(0x20)) });
}

for (const [what, instead, wanted] of HOSTILE) {
  Deno.test(`import from an address: a server that ${what} is refused`, () =>
    withModel(async ({ url }, folder) => {
      await refused(() => bring(url, `${folder}/run`), wanted);
      assert.deepEqual([...Deno.readDirSync(folder)].map(({ name }) => name), ["model"]);
    }, instead));
}

Deno.test("import from an address: a line may break again and again, as long as something comes", async () => {
  const size = 5 * PIECE_BYTES + 3, asked: number[] = [];
  const place = new UrlPlace("https://models.example/m", {
    ...IMPATIENT,
    fetch: (_, init) => {
      const [begin, last] = new Headers(init.headers).get("range")!.match(/\d+/g)!.map(Number);
      asked.push(begin!);
      // One piece, and half of the next.
      const bytes = Math.min(1.5 * PIECE_BYTES, last! + 1 - begin!);
      const headers = { "content-range": `bytes ${begin}-${last}/${size}` };
      return Promise.resolve(new Response(new Uint8Array(bytes), { status: 206, headers }));
    },
  });
  const file = await place.open("model.safetensors"), pieces: number[] = [];
  for await (const piece of file.pieces(0, size)) pieces.push(piece.length);
  assert.deepEqual(pieces, [...Array<number>(5).fill(PIECE_BYTES), 3]);
  assert.deepEqual(asked, [0, ...Array.from({ length: 5 }, (_, i) => i * PIECE_BYTES)]);
});

Deno.test("import from an address: who stays silent is not waited for", () =>
  withModel(
    ({ url }, folder) =>
      refused(
        () =>
          importModel({ from: url, out: `${folder}/run`, config: {}, url: { silenceMs: 200, pauseMs: 1 } }),
        /nothing came for 0.2 s/,
      ),
    ({ name }, usual) =>
      name === "config.json" ? usual().then((it) => new Response(new ReadableStream(), it)) : null,
  ));

Deno.test("import from an address: other addresses are followed, but not from outside into this computer", async () => {
  const answers = new Map<string, string>([
    ["https://models.example/m/a", "https://cdn.example/a"],
    ["https://models.example/m/b", "http://127.0.0.1:80/b"],
    ["https://models.example/m/c", "../m/c"],
  ]);
  const asked: string[] = [];
  const place = new UrlPlace("https://models.example/m", {
    ...IMPATIENT,
    fetch: (url) => {
      asked.push(url);
      const location = answers.get(url);
      return Promise.resolve(
        location === undefined
          ? new Response(`from ${url}`)
          : new Response(null, { status: 302, headers: { location } }),
      );
    },
  });
  assert.equal(await place.text("a", 100), "from https://cdn.example/a");
  await refused(() => place.text("b", 100), /leads to "http:\/\/127.0.0.1:80\/b", which is not asked/);
  await refused(() => place.text("c", 100), /leads to more than 5 other addresses/);
  assert.equal(asked.filter((url) => url.endsWith("/c")).length, 6);
});

Deno.test("import from an address: what nobody should ask is not asked", async () => {
  for (
    const address of [
      "http://models.example/m/",
      "https://me:secret@models.example/m/",
      "https://models.example/m/?key=1",
      "https://models.example/m/#x",
    ]
  ) {
    await refused(() => ModelSource.open(address), /cannot be asked; use an https address/, "usage");
  }
});
