// The organizer's orders over HTTP against a real coordinator and a peer that really trains, alone and on the CPU: what was
// ordered is what the weights show. The core's part has its own tests.
import assert from "node:assert/strict";
import { join } from "node:path";
import { type Coordinator, startCoordinator } from "../coordinator/main.ts";
import { loadCorpus } from "../coordinator/store/corpus.ts";
import { trainOn } from "../test/support/one_process.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { createState, type StageState } from "./exact/state.ts";
import { stateHash } from "./exact/hash.ts";
import { readConfig } from "./model/config.ts";
import { initParams } from "./model/init.ts";
import { specOf, stageLayout, wholeModel } from "./model/layout.ts";
import { createLinkHost } from "./net/host.ts";
import { Peer } from "./peer.ts";
import type { RunConfig } from "./wire/run.ts";
import type { RunStatus } from "./wire/status.ts";

const CONFIG = {
  ...{ n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1 },
  ...{ gradient_accumulation_steps: 2, max_iters: 8, warmup_iters: 0, eval_interval: 100_000 },
  ...{ snapshot_interval: 100, checkpoint_interval: 3, eval_iters: 1, sample_chars: 0 },
};

interface Site {
  coordinator: Coordinator;
  config: RunConfig;
  ask(path: string, body: unknown, method?: string): Promise<Response>;
  peer(): Peer;
  folder: string;
}

async function withRun(test: (site: Site) => Promise<void>, changes: Partial<RunConfig> = {}): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-orders-" });
  await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
  const config = readConfig({ ...CONFIG, ...changes, dataset: join(folder, "text.txt") });
  const coordinator = await startCoordinator({
    ...{ config, host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test" },
    ...{ runName: "test", webRoot: folder, onEvent: () => {} },
  });
  const { origin, hash: joinHash } = new URL(coordinator.joinLink);
  const authorization = `Bearer ${new URL(coordinator.adminLink).hash.slice(1)}`;
  const ask = (path: string, body: unknown, method = "POST") =>
    fetch(`${origin}${path}`, { method, headers: { authorization }, body: JSON.stringify(body) });
  const peer = () =>
    new Peer({
      ...{ origin, token: joinHash.slice(1), runtime: "deno", adapter: "none", engine: "cpu" },
      memoryBytes: 1e9,
      createEngine: (build) => Promise.resolve(createCpuEngine(build)),
      createHost: (selfId, relay) =>
        createLinkHost({ selfId, relay, createLink: () => assert.fail("one peer opened a link") }),
      onChange: () => {},
    });
  try {
    await test({ coordinator, config, ask, peer, folder });
  } finally {
    await coordinator.stop("the test is over");
    await Deno.remove(folder, { recursive: true });
  }
}

async function taken(response: Response): Promise<RunStatus> {
  assert.equal(response.status, 200, await response.clone().text());
  return await response.json();
}

/** The state that one process comes to, under one configuration up to a step and another one after it. */
async function expected(
  site: Site,
  parts: { until: number; set?: Partial<RunConfig> }[],
): Promise<StageState> {
  const corpus = await loadCorpus(site.config.dataset);
  const spec = specOf(site.config, corpus.vocab.length);
  const stage = wholeModel(spec);
  const state = createState(stageLayout(spec, stage), initParams(spec, stage, site.config.seed));
  let config = site.config;
  for (const { until, set = {} } of parts) {
    config = { ...config, ...set };
    await trainOn({ config, spec, corpus: corpus.tokens, state, until });
  }
  return state;
}

function hashNow({ coordinator }: Site): string {
  const { core } = coordinator.shell;
  return core.state.snapshots.at(-1)!.files[0]!.hash;
}

Deno.test("orders: what is changed from a step on changes the training from that step on, and nothing before", async () => {
  await withRun(async (site) => {
    const set = { learning_rate: 1e-2, min_lr: 1e-3, gradient_accumulation_steps: 3, batch_size: 2 };
    const status = await taken(await site.ask("/api/change", { step: 4, set }));
    assert.equal(status.config.batch_size, 1);
    await site.peer().run();
    assert.equal(site.coordinator.shell.core.state.committed, 8);
    const wanted = await expected(site, [{ until: 4 }, { until: 8, set }]);
    assert.equal(hashNow(site), stateHash(wanted));
    assert.equal(site.coordinator.shell.core.state.config.batch_size, 2);
  });
});

Deno.test("orders: the size that the planner gives micro-batches is told, and trains on the same sequences as if it were asked for", async () => {
  await withRun(async (site) => {
    const { core } = site.coordinator.shell;
    await taken(await site.ask("/api/change", { step: 4, set: { micro_batch: "fixed", batch_size: 4 } }));
    await site.peer().run();
    const { changes, config, events } = core.state;
    const chosen = changes.find(({ planned }) => planned)?.set ?? {};
    // Nobody can say beforehand what this machine measures; that it has measured is another matter.
    const { batch_size = 2, gradient_accumulation_steps = 6 } = chosen;
    assert.equal(batch_size * gradient_accumulation_steps, 12);
    assert.ok(events.some(({ text }) => /; \d+ sequences? per micro-batch, \d+ of them: /.test(text)));
    const set = { batch_size: 4, gradient_accumulation_steps };
    assert.equal(config.batch_size, 4);
    const wanted = await expected(site, [{ until: 4, set: chosen }, { until: 8, set }]);
    assert.equal(hashNow(site), stateHash(wanted));
  }, { micro_batch: "auto", batch_size: 2, gradient_accumulation_steps: 6, eval_iters: 6 });
});

Deno.test("orders: back to a checkpoint, the run goes on from there and comes to the same weights", async () => {
  await withRun(async (site) => {
    await taken(await site.ask("/api/control", { action: "stop", step: 100 }));
    await taken(await site.ask("/api/change", { step: 0, set: { max_iters: 100, lr_decay_iters: 8 } }));
    const peer = site.peer();
    const end = peer.run();
    const { core, checkpoints } = site.coordinator.shell;
    while (!checkpoints.some((it) => it.step === 6)) await new Promise((resolve) => setTimeout(resolve, 5));
    await taken(await site.ask("/api/control", { action: "pause" }));
    const name = checkpoints.find((it) => it.step === 6)!.name;
    const epoch = site.coordinator.shell.epoch;
    const status = await taken(await site.ask("/api/rollback", { checkpoint: name }));
    assert.equal(status.step, 6);
    assert.notEqual(site.coordinator.shell.epoch, epoch);
    await taken(await site.ask("/api/control", { action: "stop", step: 9 }));
    await taken(await site.ask("/api/control", { action: "resume" }));
    await end;
    assert.equal(core.state.committed, 9);
    const set = { max_iters: 100, lr_decay_iters: 8 };
    assert.equal(hashNow(site), stateHash(await expected(site, [{ until: 9, set }])));
  });
});

Deno.test("orders: checkpoints are listed as they are on disk, verified, and deleted", async () => {
  await withRun(async (site) => {
    await site.peer().run();
    const { checkpoints } = site.coordinator.shell;
    assert.deepEqual(checkpoints.map((it) => it.step), [3, 6, 8]);
    const [first, second] = checkpoints.map((it) => it.name);
    const verified = await (await site.ask(`/api/checkpoints/${first}/verify`, {})).json();
    assert.deepEqual([verified.verified, verified.step], [true, 3]);
    const file = join(site.folder, "run", "checkpoints", second!, verified.files[0].name);
    const bytes = await Deno.readFile(file);
    bytes[bytes.length - 1]! ^= 1;
    await Deno.writeFile(file, bytes);
    const damaged = await site.ask(`/api/checkpoints/${second}/verify`, {});
    assert.equal(damaged.status, 422);
    assert.match((await damaged.json()).message, /differs from its SHA-256/);
    const after = await taken(await site.ask(`/api/checkpoints/${second}`, {}, "DELETE"));
    assert.deepEqual(after.checkpoints.map((it) => it.step), [3, 8]);
    const none = await site.ask(`/api/checkpoints/${second}`, {}, "DELETE");
    assert.deepEqual([none.status, (await none.json()).code], [404, "bad-checkpoint"]);
  });
});

Deno.test("orders: what cannot be is refused with the reason, and changes nothing", async () => {
  await withRun(async ({ ask, coordinator }) => {
    const refused: [string, unknown, RegExp][] = [
      [
        "/api/change",
        { step: 1, set: { n_layer: 3 } },
        /n_layer is fixed for a run; these may change: learning_rate/,
      ],
      ["/api/change", { step: 1, set: {} }, /nothing to change/],
      ["/api/change", { step: -1, set: { grad_clip: 1 } }, /step/],
      ["/api/change", { step: 1, set: { learning_rate: "x" } }, /learning_rate is "x"; use a number/],
      ["/api/change", { step: 1, set: { min_lr: 1 } }, /min_lr 1 exceeds learning_rate/],
      ["/api/control", { action: "stop", step: 1.5 }, /whole number of steps/],
      ["/api/control", { action: "dance" }, /use pause, resume or stop/],
      ["/api/drain", { peer: "nobody" }, /there is no peer "nobody"/],
      ["/api/evict", { peer: "__proto__" }, /there is no peer/],
      ["/api/rollback", { checkpoint: "../../x" }, /there is no checkpoint/],
    ];
    for (const [path, body, message] of refused) {
      const response = await ask(path, body);
      assert.ok(response.status >= 400 && response.status < 500, `${path} ${response.status}`);
      assert.match((await response.json()).message, message);
    }
    assert.deepEqual(coordinator.shell.core.state.changes, []);
  });
});
