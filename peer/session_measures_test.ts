// A peer that measures itself against a real coordinator, alone and on the CPU: what it tells of its operations, and the trace of
// a step, said when it is asked for and before the step's total.
import assert from "node:assert/strict";
import { join } from "node:path";
import { startCoordinator } from "../coordinator/main.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { readConfig } from "./model/config.ts";
import { createLinkHost } from "./net/host.ts";
import { Peer } from "./peer.ts";
import type { PeerMessage } from "./wire/control.ts";

/** Only a hang reaches it. */
const PATIENCE_MS = 60_000;
const N = 3;

async function until(what: string, holds: () => boolean): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!holds()) {
    if (performance.now() > deadline) assert.fail(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

Deno.test("measures: a peer tells of its operations, and what it did in a step before it tells the step's total", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-measures-" });
  await Deno.writeTextFile(join(folder, "text.txt"), "a small text to learn from. ".repeat(40));
  const shape = { n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 8, batch_size: 1 };
  const pace = {
    gradient_accumulation_steps: N,
    max_iters: 100_000,
    eval_interval: 100_000,
    sample_chars: 0,
  };
  const coordinator = await startCoordinator({
    config: readConfig({ ...shape, ...pace, warmup_iters: 0, dataset: join(folder, "text.txt") }),
    ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
    ...{ webRoot: folder, onEvent: () => {} },
  });
  const { shell } = coordinator;
  const said: PeerMessage[] = [];
  const feed = shell.feed.bind(shell);
  shell.feed = (event) => {
    if (event.type === "message") said.push(event.message);
    feed(event);
  };
  const { origin, hash } = new URL(coordinator.joinLink);
  const leaving = new AbortController();
  const peer = new Peer({
    ...{ origin, token: hash.slice(1), runtime: "deno", adapter: "none", engine: "cpu", memoryBytes: 1e9 },
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    createHost: (selfId, relay) => createLinkHost({ selfId, relay, createLink: () => assert.fail("a link") }),
    onChange: () => {},
  });
  const end = peer.run(leaving.signal);
  const told = () => Object.values(shell.core.state.peers)[0]?.ops?.[0];
  await until(
    "a trace and averages",
    () => shell.core.state.traces.newest !== null && (told()?.microBatches ?? 0) > 0,
  );
  const of = <T extends PeerMessage["type"]>(type: T) =>
    said.filter((it): it is Extract<PeerMessage, { type: T }> => it.type === type);
  const [{ opMs, blockMs }] = of("measured") as [Extract<PeerMessage, { type: "measured" }>];
  assert.ok(Math.abs(opMs!.forward + opMs!.backward + opMs!.weightGrad - blockMs) < 1e-9);
  const [trace] = of("trace");
  assert.deepEqual([trace!.step, trace!.dropped], [0, 0], "the first step is asked for");
  const logged = said.findIndex((it) => it.type === "logged" && it.step === 0);
  assert.ok(said.indexOf(trace!) < logged, "the total was told first");
  assert.deepEqual(trace!.ops.map((op) => op.kind).toSorted(), ["B", "B", "B", "F", "F", "F", "W", "W", "W"]);
  trace!.ops.reduce((before, { startUs, endUs }) => {
    assert.ok(startUs >= before && endUs >= startUs, "operations overlap");
    return endUs;
  }, 0);
  assert.ok(trace!.saidUs >= trace!.ops.at(-1)!.endUs);
  const { stage, forwardMs, backwardMs, weightGradMs } = told()!;
  assert.equal(stage, 0);
  assert.ok(Math.min(forwardMs, backwardMs, weightGradMs) > 0);
  leaving.abort();
  await coordinator.stop("the test is over");
  await end;
  await Deno.remove(folder, { recursive: true });
});
