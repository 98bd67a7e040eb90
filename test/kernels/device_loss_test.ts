// A GPU that goes in the middle of a step, and memory that does not suffice, as departures: a goodbye with the reason, a
// smaller offer, a new device, and the run goes on. A real coordinator and a real device; the peer is alone, so it needs no links.
import assert from "node:assert/strict";
import { join } from "node:path";
import { type Coordinator, startCoordinator } from "../../coordinator/main.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { readConfig } from "../../peer/model/config.ts";
import { engineBytes } from "../../peer/model/stage_memory.ts";
import { createLinkHost } from "../../peer/net/host.ts";
import { Peer, type PeerCompute, type PeerOptions } from "../../peer/peer.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { TabPhase } from "../../peer/wire/status.ts";
import { onAdapter, testDevice } from "./support.ts";

const gpu = await testDevice();

/** Only a hang reaches it. */
const PATIENCE_MS = 60_000;

const CONFIG = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 16, n_inner: 20, block_size: 16, batch_size: 4 },
  ...{ gradient_accumulation_steps: 4, max_iters: 6, warmup_iters: 0, eval_interval: 1000, eval_iters: 1 },
  ...{ snapshot_interval: 1, checkpoint_interval: 1000, sample_chars: 0, n_stage: 1, schedule: "gpipe" },
};

interface Run extends AsyncDisposable {
  coordinator: Coordinator;
  state: Coordinator["shell"]["core"]["state"];
  offered: number[];
}

async function start(): Promise<Run> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-loss-" });
  await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
  const coordinator = await startCoordinator({
    config: readConfig({ ...CONFIG, dataset: join(folder, "text.txt") }),
    ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
    ...{ webRoot: folder, onEvent: () => {} },
  });
  return {
    ...{ coordinator, state: coordinator.shell.core.state, offered: [] },
    async [Symbol.asyncDispose]() {
      await coordinator.stop("the test is over");
      await Deno.remove(folder, { recursive: true });
    },
  };
}

/** A peer of the run until it ends, and the phases that its page would have shown. */
async function contribute(run: Run, compute: PeerCompute, changes: Partial<PeerOptions> = {}) {
  const { origin, hash } = new URL(run.coordinator.joinLink);
  const phases: TabPhase[] = [];
  const reasons: string[] = [];
  const peer = new Peer({
    ...{ origin, token: hash.slice(1), runtime: "deno", memoryBytes: 1e9 },
    ...compute,
    createHost: (selfId, relay) => createLinkHost({ selfId, relay, createLink: () => assert.fail("a link") }),
    onChange: ({ phase, reason }) => {
      if (phases.at(-1) !== phase) phases.push(phase);
      if (reason !== "") reasons.push(reason);
      for (const { memoryBytes } of Object.values(run.state.peers)) {
        if (memoryBytes > 0 && run.offered.at(-1) !== memoryBytes) run.offered.push(memoryBytes);
      }
    },
    ...changes,
  });
  return { end: await peer.run(), phases, reasons };
}

/** An engine on a device of its own, which is destroyed while the `nth` forward is under way. */
async function doomed(nth: number): Promise<PeerCompute> {
  const own = await testDevice();
  let forwards = 0;
  return {
    ...{ adapter: own.adapterName, engine: "wgsl (test)", deviceLost: own.lost },
    async createEngine(build: StageBuild): Promise<StageEngine> {
      const engine = await createWgslEngine(own, build);
      return new Proxy(engine, {
        get(target, name) {
          const value: unknown = Reflect.get(target, name, target);
          if (typeof value !== "function") return value;
          return (...args: unknown[]) => {
            const result: unknown = Reflect.apply(value, target, args);
            if (name === "forward" && ++forwards === nth) own.destroy();
            return result;
          };
        },
      });
    },
  };
}

function lasting(): PeerCompute {
  return {
    ...{ adapter: gpu.adapterName, engine: "wgsl (test)" },
    createEngine: (build) => createWgslEngine(gpu, build),
  };
}

async function until(what: string, holds: () => boolean): Promise<void> {
  for (const begun = performance.now(); !holds();) {
    if (performance.now() - begun > PATIENCE_MS) assert.fail(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

function events(run: Run): string {
  return run.state.events.map(({ text }) => text).join("\n");
}

Deno.test(
  onAdapter(gpu, "a device lost in mid-step is a goodbye with the reason, and the run waits for others"),
  async () => {
    await using run = await start();
    // Three forwards measure the block; the next ones are of the first step.
    const { end, phases } = await contribute(run, await doomed(5));
    assert.deepEqual([end.kind, end.code, phases.at(-1)], ["device-lost", "device-lost", "device-lost"]);
    assert.ok(end.reason.length > 0);
    await until("the goodbye", () => events(run).includes("deno-1 is gone: "));
    assert.ok(!/internal|assert/i.test(events(run)), events(run));
    assert.deepEqual([Object.keys(run.state.peers), run.state.status], [[], "waiting"]);
  },
);

Deno.test(
  onAdapter(gpu, "with a new device the peer offers less, joins again, and the run is finished"),
  async () => {
    await using run = await start();
    let opened = 0;
    const reopen = () => {
      opened++;
      return Promise.resolve(lasting());
    };
    const { end, phases } = await contribute(run, await doomed(12), { reopen });
    assert.deepEqual([end.kind, opened], ["done", 1]);
    assert.ok(phases.includes("offline"), phases.join());
    assert.deepEqual([run.state.committed, run.offered], [6, [1e9, 8e8]]);
  },
);

Deno.test(
  onAdapter(gpu, "a device that cannot be opened again ends the peer, with both reasons"),
  async () => {
    await using run = await start();
    const reopen = () => Promise.reject(new ShoalError("no-adapter", "no adapter is left"));
    const { end } = await contribute(run, await doomed(5), { reopen });
    assert.equal(end.kind, "device-lost");
    assert.match(end.reason, /; no adapter is left$/);
  },
);

Deno.test(
  onAdapter(gpu, "a peer without memory for its engine says so, offers less, and gets a plan that fits"),
  async () => {
    await using run = await start();
    const refused: number[] = [];
    let capacity = Infinity;
    const { end, reasons } = await contribute(run, {
      ...lasting(),
      createEngine(build) {
        const bytes = engineBytes("wgsl", build);
        // Room for two slots of the four that the schedule wants.
        if (build.slots === 4) capacity = engineBytes("wgsl", { ...build, slots: 2 });
        if (bytes > capacity) {
          refused.push(bytes);
          return Promise.reject(
            new ShoalError("out-of-memory", `${bytes} bytes are too many for this device`),
          );
        }
        return createWgslEngine(gpu, build);
      },
    });
    assert.deepEqual([end.kind, run.state.committed], ["done", 6]);
    assert.ok(refused.length >= 1 && refused.length <= 3, `refused ${refused.join()}`);
    assert.ok(reasons.some((reason) => /bytes are too many for this device; trying again/.test(reason)));
    assert.match(events(run), /is gone: said goodbye: \d+ bytes are too many for this device/);
    assert.ok(
      run.offered.length > 1 && run.offered.every((bytes, i) => i === 0 || bytes < run.offered[i - 1]!),
    );
  },
);
