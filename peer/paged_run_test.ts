// A run of three stages on a text that stays on the coordinator's disk: what one process learns, each end fetches the pages of its windows,
// and the middle stage fetches nothing of it. Real coordinator, sockets and peers; the links are the coordinator's relay.
import assert from "node:assert/strict";
import { join } from "node:path";
import { FolderDesk } from "../coordinator/corpora/desk.ts";
import { chooseTokenizer } from "../coordinator/corpora/tokenizer.ts";
import { openRun } from "../coordinator/main.ts";
import type { Shell } from "../coordinator/shell.ts";
import { loadCorpus } from "../coordinator/store/corpus.ts";
import { runOneProcess } from "../test/support/one_process.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";
import { createLinkHost } from "./net/host.ts";
import { Peer } from "./peer.ts";
import type { RunConfig } from "./wire/run.ts";

const CONFIG = {
  ...{ n_layer: 3, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 3, n_stage: 3 },
  ...{ gradient_accumulation_steps: 3, max_iters: 6, warmup_iters: 0, eval_interval: 3, eval_iters: 2 },
  // Nothing is lost between the stages, so that losses compare.
  ...{ codec_forward: "raw32", codec_backward: "raw32", min_peers: 3, shadows: false, sample_chars: 0 },
  ...{ snapshot_interval: 100, checkpoint_interval: 100 },
};
/** So small a text is paged only because the test says so. */
const PAGING = { heldBytesMax: 1000, pageBytes: 256 };

interface Site {
  config: RunConfig;
  folder: string;
  corporaDir: string;
  tokens: number;
}

async function prepared(folder: string): Promise<Site> {
  const path = join(folder, "text.txt"), runsDir = join(folder, "runs");
  const lines = Array.from({ length: 4000 }, (_, i) => `${i % 89} sheep, ${i * i % 97} goats\n`);
  await Deno.writeTextFile(path, lines.join(""));
  const source = { path, name: path, format: "text" as const, column: "" };
  const wish = { source, choice: await chooseTokenizer("char"), multiple: 1 };
  const { id, tokens } = await new FolderDesk(runsDir).add(wish, () => {});
  const config = readConfig({ ...CONFIG, dataset: `corpus:${id}` });
  return { config, folder, corporaDir: join(runsDir, "corpora"), tokens };
}

/** The run from beginning to end; what each peer has fetched of the text, in bytes. */
async function trained(
  { config, folder, corporaDir }: Site,
): Promise<{ shell: Shell; fetched: Map<string, number> }> {
  let base = "";
  const run = await openRun({
    ...{ config, outDir: join(folder, "run"), operator: "the test", runName: "test", webRoot: folder },
    ...{ corporaDir, onEvent: () => {}, paging: PAGING },
  }, { base: () => base });
  const fetched = new Map<string, number>();
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, async (request) => {
    const response = await run.fetch(request);
    if (!new URL(request.url).pathname.startsWith("/api/corpus")) return response;
    const peer = request.headers.get("x-shoal-peer")!,
      bytes = (await response.clone().arrayBuffer()).byteLength;
    fetched.set(peer, (fetched.get(peer) ?? 0) + bytes);
    return response;
  });
  base = `http://127.0.0.1:${server.addr.port}`;
  const token = new URL(run.joinLink()).hash.slice(1);
  const peers = Array.from({ length: 3 }, () =>
    new Peer({
      ...{ origin: base, token, runtime: "deno", adapter: "none", engine: "cpu", memoryBytes: 1e9 },
      createEngine: (build) => Promise.resolve(createCpuEngine(build)),
      createHost: (selfId, relay) => createLinkHost({ selfId, relay, createLink: null }),
      onChange: () => {},
    }));
  await Promise.all(peers.map((peer) => peer.run()));
  await run.close("the test is over");
  await server.shutdown();
  return { shell: run.shell, fetched };
}

Deno.test("pages: a run on a text that stays on the disk learns what one process does, and its middle stage fetches none of it", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-pages-" });
  try {
    const site = await prepared(folder);
    const { shell: { core: { state } }, fetched } = await trained(site);
    assert.equal(state.committed, 6);
    const stages = state.view!.stages;
    assert.deepEqual(stages.map(({ embed, head }) => embed || head), [true, false, true]);
    const [first, middle, last] = stages.map(({ replicas }) => fetched.get(replicas[0]!.peer) ?? 0);
    assert.equal(middle, 0, "a stage that needs no tokens fetched some");
    for (const bytes of [first!, last!]) {
      assert.ok(bytes > 0 && bytes < site.tokens, `${bytes} of ${site.tokens}`);
    }
    const { config, corporaDir } = site;
    const corpus = await loadCorpus(config.dataset, undefined, null, { folder: corporaDir });
    const reference = await runOneProcess(config, specOf(config, corpus.vocab.length), corpus.tokens);
    const told = state.losses.filter(({ train }) => train !== undefined).at(-1)!;
    assert.ok(
      Math.abs(told.train! - reference.losses[told.step - 1]!) < 1e-9,
      `${told.train} ${reference.losses}`,
    );
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
