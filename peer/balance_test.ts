// Real peers and a real coordinator in one process: one of two replicas becomes three times slower, and within ten steps the other
// does most of the work. The engines compute in truth and wait besides, so that the ratio does not depend on the machine.
import assert from "node:assert/strict";
import { join } from "node:path";
import { startCoordinator } from "../coordinator/main.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import { readConfig } from "./model/config.ts";
import { createLinkHost } from "./net/host.ts";
import { Peer } from "./peer.ts";

/** Only a hang reaches it. */
const PATIENCE_MS = 120_000;
/** Of each operation; what is computed takes far less. */
const OP_MS = 25;
const MICRO_BATCHES = 8;

const CONFIG = {
  ...{ n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1 },
  ...{ gradient_accumulation_steps: MICRO_BATCHES, max_iters: 100_000, warmup_iters: 0, n_stage: 1 },
  ...{ eval_interval: 100_000, eval_iters: 1, snapshot_interval: 1_000, checkpoint_interval: 100_000 },
  ...{ sample_chars: 0, min_peers: 2, parity: false },
};

interface Pace {
  /** 1 = as it was measured. */
  factor: number;
}

/** The double-precision engine, slowed down. */
function createWaiting(build: StageBuild, pace: Pace): StageEngine {
  const engine = createCpuEngine(build);
  const layers = build.stage.endLayer - build.stage.firstLayer;
  const wait = () => new Promise((resolve) => setTimeout(resolve, OP_MS * layers * pace.factor));
  return new Proxy(engine, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== "function") return value;
      const method = value.bind(target) as (...args: unknown[]) => unknown;
      if (name !== "forward" && name !== "backward" && name !== "weightGrad") return method;
      return async (...args: unknown[]) => {
        await wait();
        return await method(...args);
      };
    },
  });
}

function startPeer({ origin, hash }: URL, name: string, pace: Pace): { peer: Peer; ended: Promise<unknown> } {
  const peer = new Peer({
    ...{ origin, token: hash.slice(1), runtime: "deno", adapter: "none", engine: "cpu", name },
    ...{ memoryBytes: 1e9, onChange: () => {} },
    createEngine: (build) => Promise.resolve(createWaiting(build, pace)),
    createHost: (selfId, relay) => createLinkHost({ selfId, relay, createLink: null }),
  });
  return { peer, ended: peer.run() };
}

async function until(what: string, holds: () => boolean): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!holds()) {
    if (performance.now() > deadline) assert.fail(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

Deno.test("balance: of two real replicas one becomes three times slower; within ten steps the other has most of the work", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-balance-" });
  await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
  const coordinator = await startCoordinator({
    config: readConfig({ ...CONFIG, dataset: join(folder, "text.txt") }),
    ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
    ...{ webRoot: folder, onEvent: () => {} },
  });
  const { state } = coordinator.shell.core;
  const paces: Pace[] = [{ factor: 1 }, { factor: 1 }];
  const peers = paces.map((pace, i) => startPeer(new URL(coordinator.joinLink), `peer ${i + 1}`, pace));
  const shares = () =>
    Object.fromEntries(
      (state.view?.stages[0]?.replicas ?? []).map(({ peer, microBatches }) => [
        state.peers[peer]?.name ?? peer,
        microBatches.length,
      ]),
    );
  try {
    await until("eight steps", () => state.committed >= 8);
    const even = shares();
    assert.deepEqual(Object.keys(even).toSorted(), ["peer 1", "peer 2"]);
    paces[1]!.factor = 3;
    const since = state.committed;
    await until("another share", () => shares()["peer 2"]! <= 2);
    assert.ok(state.committed - since <= 10, `${state.committed - since} steps`);
    assert.equal(shares()["peer 1"], MICRO_BATCHES - shares()["peer 2"]!);
    const told = state.events.filter((event) => event.kind === "plan").map((event) => event.text);
    assert.ok(told.some((text) => /^peer 2 takes [23]\.\d times as long/.test(text)), told.join("\n"));
    assert.ok(told.some((text) => text.startsWith("Micro-batches are dealt out anew.")), told.join("\n"));
    assert.equal(state.stepsRedone, 0);
  } finally {
    await coordinator.stop("the test is over");
    await Promise.all(peers.map(({ ended }) => ended));
    await Deno.remove(folder, { recursive: true });
  }
});
