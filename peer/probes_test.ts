// Real peers and a real coordinator in one process: the links of everybody who joins are measured before a plan may use them, over
// the relay, and training begins all the same.
import assert from "node:assert/strict";
import { join } from "node:path";
import { startCoordinator } from "../coordinator/main.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { readConfig } from "./model/config.ts";
import { createLinkHost } from "./net/host.ts";
import { Peer } from "./peer.ts";

/** Only a hang reaches it. */
const PATIENCE_MS = 120_000;

const CONFIG = {
  ...{ n_layer: 3, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1 },
  ...{ gradient_accumulation_steps: 4, max_iters: 100_000, warmup_iters: 0, n_stage: 3 },
  ...{ eval_interval: 100_000, checkpoint_interval: 100_000, sample_chars: 0, min_peers: 3 },
};

type CreateLink = Parameters<typeof createLinkHost>[0]["createLink"];

function startPeer({ origin, hash }: URL, createLink: CreateLink): Promise<unknown> {
  const peer = new Peer({
    ...{ origin, token: hash.slice(1), runtime: "deno", adapter: "none", engine: "cpu" },
    ...{ memoryBytes: 1e9, onChange: () => {} },
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    createHost: (selfId, relay) => createLinkHost({ selfId, relay, createLink }),
  });
  return peer.run();
}

async function until(what: string, holds: () => boolean): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!holds()) {
    if (performance.now() > deadline) assert.fail(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const ways: [string, CreateLink, string][] = [["the relay", null, "relay"]];
for (const [way, createLink, path] of ways) {
  Deno.test(`probes: over ${way} links are known before a plan may use their peers`, async () => {
    const folder = await Deno.makeTempDir({ prefix: "shoal-probes-" });
    await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
    const coordinator = await startCoordinator({
      config: readConfig({ ...CONFIG, dataset: join(folder, "text.txt") }),
      ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
      ...{ webRoot: folder, onEvent: () => {} },
    });
    const { core } = coordinator.shell;
    const { state } = core;
    const measured = (id: string) =>
      Object.values(state.peers[id]?.links ?? {}).filter((link) =>
        link.path === path && Math.min(link.rttMs, link.upBytesPerS, link.downBytesPerS) > 0
      ).length;
    /** Of each peer, how many links were known when it could first be given work; a busy machine may use up its patience. */
    const known: { links: number; late: boolean }[] = [];
    const step = core.step.bind(core);
    core.step = (event, now) => {
      const waiting = Object.entries(state.probing.waiting);
      const effects = step(event, now);
      for (const [id, { until }] of waiting) {
        if (id in state.probing.waiting || (state.peers[id]?.blockMs ?? 0) === 0) continue;
        known.push({ links: measured(id), late: now >= until });
      }
      return effects;
    };
    const link = new URL(coordinator.joinLink);
    const ends = [1, 2, 3].map(() => startPeer(link, createLink));
    try {
      await until("the first steps", () => state.committed >= 2);
      ends.push(startPeer(link, createLink));
      await until("a fourth peer, and every link", () => {
        const all = Object.keys(state.peers);
        return all.length === 4 && all.every((id) => measured(id) === 3);
      });
      // Who was the first had nobody to wait for, and was admitted with the same event; so was another that came with it.
      assert.ok(known.length === 3 || known.length === 2, JSON.stringify(known));
      for (const [i, { links, late }] of known.entries()) {
        assert.ok(late || links >= i + 1, JSON.stringify(known));
      }
      const since = state.committed;
      await until("more steps", () => state.committed >= since + 2);
      assert.equal(state.stepsRedone, 0);
    } finally {
      await coordinator.stop("the test is over");
      await Promise.all(ends);
      await Deno.remove(folder, { recursive: true });
    }
  });
}
