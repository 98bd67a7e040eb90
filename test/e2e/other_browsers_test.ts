// The contributor's page in the browsers that are not Chromium, as Debian ships them: a person's one click, then training with a
// Deno peer, the loss curve drawn, and leaving. Neither has WebGPU here, so both compute in WebAssembly; WebKitGTK has no
// WebRTC either, so its frames go over the coordinator.
import assert from "node:assert/strict";
import { openFirefox, openWebKit, type OtherBrowser } from "./other_browsers.ts";
import { startSwarm, type Swarm } from "./swarm_support.ts";

/** Steps that the browser must take part in, and how far the loss of a byte-sized model falls within them at least; nats. */
const STEPS = 12;
const FALL = 0.2;

const MODEL = { min_peers: 2, n_stage: 2, eval_interval: 1000, snapshot_interval: 1000, sample_chars: 0 };

function pressed(name: string): string {
  return `(() => {
    const button = [...document.querySelectorAll("button")].find((it) => it.textContent.includes("${name}"));
    button?.click();
    return button !== undefined;
  })()`;
}

/** Pixels of the curve's picture that are not empty. */
const DRAWN = `(() => {
  const canvas = document.querySelector(".plot canvas");
  if (canvas === null || canvas.width === 0) return 0;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, index) => index % 4 === 3 && value > 0).length;
})()`;

const TEXT = "document.querySelector('main').innerText";

async function trains(browser: OtherBrowser, swarm: Swarm): Promise<string> {
  const { state } = swarm.coordinator.shell.core;
  await browser.goto(swarm.coordinator.joinLink);
  await eventually("the button", () => browser.value(pressed("Lend this computer")));
  swarm.startPeer("cpu");
  await swarm.until(`${STEPS} steps`, () => swarm.step() >= STEPS);
  const losses = swarm.lines.flatMap((line) => line.event === "step" ? [line["train/loss"]] : []);
  assert.ok(losses[STEPS - 1]! < losses[0]! - FALL, losses.join(" "));
  const tab = Object.values(state.peers).find(({ id }) => id.startsWith("tab"));
  assert.match(tab?.engine ?? "", /^tfjs-wasm/);
  assert.equal(state.events.filter(({ kind }) => kind === "evict").length, 0);
  await eventually("the curve", async () => Number(await browser.value(DRAWN)) > 1000);
  return String(await browser.value(TEXT));
}

/** Who leaves by the button costs the others nothing. */
async function leaves(browser: OtherBrowser, swarm: Swarm): Promise<void> {
  const { state } = swarm.coordinator.shell.core;
  assert.equal(await browser.value(pressed("Finish this step and leave")), true);
  await eventually("the end", async () => /thank|left/i.test(String(await browser.value(TEXT))));
  assert.equal(state.stepsRedone, 0);
}

async function eventually(what: string, holds: () => Promise<unknown>): Promise<void> {
  for (let patience = 600; patience > 0; patience--) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`waited too long for ${what}`);
}

Deno.test("Firefox: one click, a direct link, training in WebAssembly, leaving", async () => {
  await using swarm = await startSwarm(MODEL);
  await using browser = await openFirefox();
  const text = await trains(browser, swarm);
  assert.match(text, /1 direct, 0 relayed/);
  await leaves(browser, swarm);
});

Deno.test("WebKitGTK: one click, the relay where there is no WebRTC, training in WebAssembly, leaving", async () => {
  await using swarm = await startSwarm(MODEL);
  await using browser = await openWebKit();
  const text = await trains(browser, swarm);
  assert.match(text, /0 direct, 1 relayed \(this computer makes no direct connections\)/);
  await leaves(browser, swarm);
});
