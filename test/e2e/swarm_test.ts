// The main job with everything real: tabs and a Deno process train one model over WebRTC with WebGPU on software adapters;
// loss falls, second holders agree on every state hash, a tab is closed and training goes on. No wall-clock assertions.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import type { Page } from "playwright";
import { mainThreadOf } from "./main_thread.ts";
import type { StepTrace } from "../../peer/wire/status.ts";
import { startSwarm, type Swarm } from "./swarm_support.ts";

const SHOTS = fileURLToPath(new URL("../screenshots/", import.meta.url));

/** A page stays responsive while its thread is never busy for longer at a stretch (W3C Long Tasks); it measures 4 ms. */
const LONG_TASK_MS = 50;

function losses(swarm: Swarm): number[] {
  return swarm.lines.flatMap((line) => line.event === "step" ? [line["train/loss"]] : []);
}

function mean(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

async function lend(page: Page): Promise<void> {
  await page.getByRole("button", { name: /lend this computer/i }).click();
}

async function shot(page: Page, name: string): Promise<void> {
  await Deno.mkdir(SHOTS, { recursive: true });
  await page.screenshot({ path: `${SHOTS}${name}.png`, fullPage: true });
}

/** The newest traced step as the organizer's page gets it: every operation of every stage once, none before what it needs. */
async function checkTrace({ coordinator }: Swarm, N: number): Promise<void> {
  const { origin, hash } = new URL(coordinator.adminLink);
  const answer = await fetch(`${origin}/api/trace`, {
    headers: { authorization: `Bearer ${hash.slice(1)}` },
  });
  const trace: StepTrace = await answer.json();
  const ops = new Map(
    trace.lanes.flatMap((lane) => lane.ops.map((op) => [`${op.kind} ${op.stage} ${op.microBatch}`, op])),
  );
  assert.equal(ops.size, 3 * N * trace.stages);
  const last = trace.stages - 1;
  for (const { kind, stage, microBatch, startMs, endMs } of ops.values()) {
    const needed = [
      ...(kind === "F" && stage > 0 ? [`F ${stage - 1}`] : []),
      ...(kind === "B" ? [`F ${stage}`, ...(stage < last ? [`B ${stage + 1}`] : [])] : []),
      ...(kind === "W" ? [`B ${stage}`] : []),
    ];
    for (const name of needed) {
      const { endMs: madeMs } = ops.get(`${name} ${microBatch}`)!;
      assert.ok(madeMs <= startMs + 1e-6, `${kind} ${stage} ${microBatch} begins before ${name} has ended`);
    }
    assert.ok(endMs <= trace.measuredMs, `${kind} ${stage} ${microBatch} ends after the commit`);
  }
  assert.ok(trace.bubble >= 0 && trace.bubble < 1 && trace.predictedMs !== null);
}

/** The organizer has the run's computers, tabs among them, write a text while they train. */
async function writeTogether({ coordinator }: Swarm, admin: Page): Promise<void> {
  const panel = admin.getByRole("region", { name: "Try the model" });
  await panel.getByRole("button", { name: "Write a text with it" }).press("Enter");
  await panel.getByLabel("Text to continue").fill("the");
  await panel.getByRole("radio", { name: /The computers of the run/ }).check();
  await panel.getByLabel("Length, tokens").fill("12");
  await panel.getByRole("button", { name: "Write", exact: true }).press("Enter");
  await panel.getByText("Done, with 12 tokens.").waitFor();
  await panel.getByText(/^weights of step .*, 12 tokens, .* tokens a second$/).waitFor();
  const { events, texts } = coordinator.shell.core.state;
  assert.ok(events.some(({ kind, text }) => kind === "text" && text.includes("on tab-")));
  assert.equal(texts.edition, null, "the copies are not given back");
}

Deno.test("two tabs with two engines and a Deno peer train together; one tab closes and training goes on", async () => {
  await using swarm = await startSwarm({ n_stage: 2, min_peers: 3 });
  const { coordinator } = swarm;
  const core = coordinator.shell.core.state;
  swarm.startPeer();
  const [first, second] = [await swarm.openTab("wgsl"), await swarm.openTab("tfjs-wasm")];
  assert.equal(
    Object.keys(core.peers).filter((id) => id.startsWith("tab")).length,
    0,
    "a tab joined before the click",
  );
  await lend(first);
  await lend(second);
  await swarm.until("8 steps", () => swarm.step() >= 8);
  const main = await mainThreadOf(second, () => swarm.until("20 steps", () => swarm.step() >= 20));
  const busy = `${main.tasks} tasks on the page's thread, the longest ${main.longestMs} ms`;
  assert.ok(main.tasks > 0 && main.longestMs < LONG_TASK_MS, busy);
  const seen = losses(swarm);
  assert.ok(mean(seen.slice(-4)) < mean(seen.slice(0, 4)) - 0.5, `loss did not fall: ${seen.join(" ")}`);
  assert.ok(core.agreements >= 15, `second holders agreed only ${core.agreements} times`);
  assert.equal(core.events.filter((event) => event.kind === "evict").length, 0);
  const engines = Object.values(core.peers).map(({ engine }) => engine).toSorted();
  assert.deepEqual(engines, ["tfjs-wasm", "wgsl (builtin)", "wgsl (builtin)"]);
  assert.ok(swarm.lines.some((line) => line.event === "eval"), "no evaluation happened");
  await checkTrace(swarm, core.config.gradient_accumulation_steps);
  for (const { ops = [], links = {} } of Object.values(core.peers)) {
    for (const { forwardMs, backwardMs, weightGradMs } of ops) {
      assert.ok(Math.min(forwardMs, backwardMs, weightGradMs) > 0);
    }
    assert.ok(
      Object.values(links).some((link) => link.rttMs > 0 && link.upBytesPerS > 0),
      "no link was measured",
    );
  }
  await second.getByRole("heading", { level: 1 }).waitFor();
  await shot(second, "live-contributor");

  const admin = await second.context().newPage();
  await admin.goto(coordinator.adminLink);
  await admin.getByText(/training/i).first().waitFor();
  await admin.getByRole("listbox", { name: "Stages over time" }).getByRole("option").first().waitFor();
  await shot(admin, "live-admin");
  await writeTogether(swarm, admin);
  await admin.close();

  const generation = core.gen;
  await first.close();
  await swarm.until("a new generation", () => core.gen > generation);
  const before = swarm.step();
  await swarm.until("5 more steps", () => swarm.step() >= before + 5 && core.status === "training");
  assert.ok(core.events.some((event) => event.kind === "gone"));
  assert.equal(core.stepsRedone, 0, "a committed step was lost although every stage had a second holder");
});

Deno.test("a contributor does everything with the keyboard alone", async () => {
  await using swarm = await startSwarm({ n_stage: 1, min_peers: 1, sample_chars: 0, eval_interval: 1000 });
  const core = swarm.coordinator.shell.core.state;
  const page = await swarm.openTab();
  await page.getByRole("button", { name: /lend this computer/i }).waitFor();
  await press(page, /lend this computer/i);
  await swarm.until("2 steps", () => swarm.step() >= 2);
  await press(page, /^pause$/i);
  await swarm.until(
    "the pause",
    () => Object.values(core.peers).every((peer) => peer.paused) && core.view === null,
  );
  const paused = swarm.step();
  await press(page, /^resume$/i);
  await swarm.until("work after the pause", () => swarm.step() >= paused + 2);
  await press(page, /finish this step and leave/i);
  await swarm.until("the leave", () => Object.keys(core.peers).length === 0);
  assert.equal(core.stepsRedone, 0);
  await page.getByText(/left|thank/i).first().waitFor();
});

/** Moves the focus with Tab until the named button has it, then presses Enter. */
async function press(page: Page, name: RegExp): Promise<void> {
  const button = page.getByRole("button", { name });
  await button.and(page.locator(":enabled")).waitFor();
  for (let presses = 0; presses < 40; presses++) {
    if (await button.evaluate((element) => element === document.activeElement)) {
      return await page.keyboard.press("Enter");
    }
    await page.keyboard.press("Tab");
  }
  assert.fail(`Tab never reached the button ${name}`);
}

/** What a browser looks like in which WebRTC is switched off. */
const NO_WEBRTC = "delete globalThis.RTCPeerConnection; delete globalThis.webkitRTCPeerConnection;";

function isRelayed(peer: { direct: number; relayed: number }): boolean {
  return peer.direct === 0 && peer.relayed === 1;
}

Deno.test("a tab without any direct path trains through the coordinator's relay", async () => {
  await using swarm = await startSwarm({ n_stage: 2, min_peers: 2, sample_chars: 0, shadows: false });
  const core = swarm.coordinator.shell.core.state;
  swarm.startPeer("cpu");
  const page = await swarm.openTab("auto", (page) => page.addInitScript(NO_WEBRTC));
  await lend(page);
  await swarm.until("4 steps", () => swarm.step() >= 4);
  const chosen = Object.values(core.peers).map(({ engine }) => engine).find((engine) => engine !== "cpu");
  assert.match(
    chosen ?? "",
    /^(wgsl \(builtin\)|tfjs-wasm): [\d.]+ ms a block with .+( [\d.]+ with |not ready in time)/,
  );
  await swarm.until("word of the relay", () => Object.values(core.peers).filter(isRelayed).length === 2);
  await shot(page, "live-relayed");
});

Deno.test("the GPU dies under a tab: it says so, the run goes on without a lost step, and the tab joins again", async () => {
  await using swarm = await startSwarm({ n_stage: 2, min_peers: 2, sample_chars: 0 });
  const core = swarm.coordinator.shell.core.state;
  swarm.startPeer("cpu");
  const page = await swarm.openTab();
  await lend(page);
  await swarm.until("3 steps", () => swarm.step() >= 3);
  await killGpuProcess(page);
  await page.getByRole("heading", { name: /graphics device was lost/i }).waitFor();
  await shot(page, "live-device-lost");
  const before = swarm.step();
  await swarm.until("3 more steps", () => swarm.step() >= before + 3);
  assert.equal(core.stepsRedone, 0);
  // One press: who has agreed is not asked twice.
  await page.getByRole("button", { name: /join again/i }).click();
  await swarm.until(
    "the tab's return",
    () => core.status === "training" && (core.view?.stages[1]?.replicas.length ?? 0) > 1,
  );
});

/** Ends this browser's own GPU process, found through its debugging protocol. */
async function killGpuProcess(page: Page): Promise<void> {
  const session = await page.context().browser()!.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const gpu = processInfo.find((process) => process.type === "GPU");
  assert.ok(gpu, "the browser has no GPU process");
  Deno.kill(gpu.id, "SIGKILL");
}
