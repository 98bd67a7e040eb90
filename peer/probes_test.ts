// Real peers and a real coordinator in one process: the links of everybody who joins are measured before a plan may use them, over
// the relay and over WebRTC alike, and training begins all the same.
import assert from "node:assert/strict";
import { join } from "node:path";
import { startCoordinator } from "../coordinator/main.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { readConfig } from "./model/config.ts";
import { createLinkHost } from "./net/host.ts";
import { SimplePeerLink } from "./net/simple_peer.ts";
import { denoStack } from "./net/wrtc_deno.ts";
import { Peer } from "./peer.ts";

/** Only a hang reaches it. */
const PATIENCE_MS = 60_000;

const CONFIG = {
  ...{ n_layer: 3, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1 },
  ...{ gradient_accumulation_steps: 4, max_iters: 100_000, warmup_iters: 0, n_stage: 3 },
  ...{ eval_interval: 100_000, checkpoint_interval: 100_000, sample_chars: 0, min_peers: 3 },
};

type CreateLink = Parameters<typeof createLinkHost>[0]["createLink"];

const webrtc: CreateLink = (remote, options) => new SimplePeerLink({ remote, stack: denoStack, ...options });

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

const ways: [string, CreateLink, string][] = [["the relay", null, "relay"], ["WebRTC", webrtc, "direct"]];
for (const [way, createLink, path] of ways) {
  // The native addon keeps handles that the sanitizers take for leaks of the test.
  const options = { sanitizeOps: false, sanitizeResources: false };
  Deno.test(`probes: over ${way} links are known before a plan may use their peers`, options, async () => {
    const folder = await Deno.makeTempDir({ prefix: "shoal-probes-" });
    await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
    const coordinator = await startCoordinator({
      config: readConfig({ ...CONFIG, dataset: join(folder, "text.txt") }),
      ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
      ...{ webRoot: folder, onEvent: () => {} },
    });
    const { core } = coordinator.shell;
    const { state } = core;
    /** Of each peer, the links that were known in both ends' words when it could first be given work. */
    const known = new Map<string, string[]>();
    const step = core.step.bind(core);
    core.step = (event, now) => {
      const effects = step(event, now);
      for (const { id: peer, blockMs, links: all = {} } of Object.values(state.peers)) {
        if (blockMs === 0) continue;
        const links = Object.entries(all);
        const measured = links.filter(([, link]) =>
          link.path === path && Math.min(link.rttMs, link.upBytesPerS, link.downBytesPerS) > 0
        );
        if (!known.has(peer)) known.set(peer, measured.map(([other]) => other));
      }
      return effects;
    };
    const link = new URL(coordinator.joinLink);
    const ends = [1, 2, 3].map(() => startPeer(link, createLink));
    try {
      await until("the first steps", () => state.committed >= 2);
      assert.deepEqual([...known.values()].map((links) => links.length), [0, 1, 2]);
      ends.push(startPeer(link, createLink));
      await until("a fourth peer", () => known.size === 4);
      assert.equal([...known.values()][3]!.length, 3);
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
