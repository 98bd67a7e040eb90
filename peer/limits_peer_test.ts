// The limits of real peers against a real coordinator in this process: the share of the time spent computing, and the bytes that
// go over the relay. What is measured is bounded from above only: a busy machine can but lower it.
import assert from "node:assert/strict";
import { join } from "node:path";
import { startCoordinator } from "../coordinator/main.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { Gate } from "./limits.ts";
import { readConfig } from "./model/config.ts";
import { CHANNEL_URGENT_BYTES_MAX } from "./net/channel_link.ts";
import { CHUNK_BYTES_MAX } from "./net/chunks.ts";
import { GatedHost } from "./net/gated_host.ts";
import { createLinkHost } from "./net/host.ts";
import { Pacer } from "./net/pacer.ts";
import { Peer } from "./peer.ts";
import { type Limits, NO_LIMITS } from "./wire/limits.ts";

/** Only a hang reaches it. */
const PATIENCE_MS = 120_000;
const CONFIG = {
  ...{ n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 16, n_inner: 16, block_size: 32, batch_size: 4 },
  ...{ gradient_accumulation_steps: 4, max_iters: 100_000, warmup_iters: 0, eval_interval: 100_000 },
  ...{ snapshot_interval: 0, checkpoint_interval: 100_000, eval_iters: 1, sample_chars: 0, shadows: false },
};

/** Notes when operations ran, by the same clock that the gate reads. */
class WatchedGate extends Gate {
  busyMs = 0;
  #firstEndedAt: number | null = null;
  #begunAt = 0;

  override async before(): Promise<void> {
    await super.before();
    this.#begunAt = performance.now();
  }

  override after(busyMs: number): void {
    super.after(busyMs);
    if (this.#firstEndedAt === null) this.#firstEndedAt = performance.now();
    else this.busyMs += busyMs;
  }

  /** From the end of the first operation to the beginning of the newest, in which all but that one ran. */
  get spanMs(): number {
    return this.#begunAt - (this.#firstEndedAt ?? this.#begunAt);
  }
}

async function start(changes: Record<string, unknown>) {
  const folder = await Deno.makeTempDir({ prefix: "shoal-limits-" });
  await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
  const coordinator = await startCoordinator({
    config: readConfig({ ...CONFIG, dataset: join(folder, "text.txt"), ...changes }),
    ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
    ...{ webRoot: folder, onEvent: () => {} },
  });
  const { origin, hash } = new URL(coordinator.joinLink);
  return {
    ...{ coordinator, origin, token: hash.slice(1) },
    until: async (holds: () => boolean) => {
      const deadline = performance.now() + PATIENCE_MS;
      while (!holds()) {
        assert.ok(performance.now() < deadline, coordinator.shell.core.state.reason);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    },
    async [Symbol.asyncDispose]() {
      await coordinator.stop("the test is over");
      await Deno.remove(folder, { recursive: true });
    },
  };
}

function openPeer({ origin, token }: { origin: string; token: string }, limits: Partial<Limits>) {
  const gate = new WatchedGate({ ...NO_LIMITS, ...limits });
  const pacer = new Pacer();
  pacer.setRate(limits.upBytesPerS ?? null);
  const peer = new Peer({
    ...{ origin, token, runtime: "deno", adapter: "CPU", engine: "cpu", memoryBytes: 1e9, gate },
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    createHost: (selfId, relay) =>
      new GatedHost(createLinkHost({ selfId, relay, createLink: null, pacer }), gate),
    onChange: () => {},
  });
  return { peer, gate, pacer, end: peer.run() };
}

Deno.test("limits: a peer that may compute a third of the time does, over hundreds of operations", async () => {
  await using run = await start({ n_stage: 1, min_peers: 1 });
  const { peer, gate, end } = openPeer(run, { duty: 1 / 3 });
  await run.until(() => run.coordinator.shell.core.state.committed >= 12);
  const share = gate.busyMs / gate.spanMs;
  assert.ok(gate.busyMs > 0 && share <= 0.4, `${share} of the time`);
  assert.equal(peer.snapshot().held?.by, "duty");
  gate.setCaps(NO_LIMITS);
  peer.leaveNow();
  await end;
});

Deno.test("limits: what a peer sends stays below its rate while the run goes on, and is counted", async () => {
  await using run = await start({ n_stage: 2, min_peers: 2 });
  const rate = 50_000;
  const begun = performance.now();
  const slow = openPeer(run, { upBytesPerS: rate });
  const free = openPeer(run, {});
  const { state } = run.coordinator.shell.core;
  while (state.committed < 12 || slow.pacer.up < rate * 3) {
    await run.until(() => true);
    await new Promise((resolve) => setTimeout(resolve, 50));
    const most = rate * (performance.now() - begun + 250) / 1000 + CHANNEL_URGENT_BYTES_MAX + CHUNK_BYTES_MAX;
    assert.ok(slow.pacer.up <= most, `${slow.pacer.up} bytes, at most ${most}`);
    assert.ok(performance.now() - begun < PATIENCE_MS, state.reason);
  }
  assert.ok(slow.gate.http.down > 0, "the corpus is traffic, too");
  assert.ok(Math.abs(slow.pacer.up - free.pacer.down) < 5 * CHUNK_BYTES_MAX, "both ends count the same");
  slow.gate.setCaps(NO_LIMITS);
  for (const { peer, end } of [slow, free]) {
    peer.leaveNow();
    await end;
  }
});
