// Tests of the contributor's screens: which screen shows when, and that it says what the snapshot says.
import assert from "node:assert/strict";
import { fixtures } from "./fixtures.ts";
import { inspection, invite, snapshot } from "./fixtures_data.ts";
import type { TabPhase } from "../peer/wire/status.ts";
import {
  type LiveView,
  type NoticeView,
  type TabModel,
  tabScreen,
  type WelcomeView,
} from "./view_model_tab.ts";

const opened: TabModel = {
  ...{ invite, inspection, snapshot: null, asked: false, refusal: null, secure: true },
  engine: "auto",
};

/** Every phase, so that a new one fails to compile here until it has a screen. */
const KIND_OF_PHASE: Record<TabPhase, "live" | "notice"> = {
  "joining": "live",
  "measuring": "live",
  "spare": "live",
  "loading": "live",
  "training": "live",
  "paused": "live",
  "finishing": "live",
  "left": "notice",
  "done": "notice",
  "device-lost": "notice",
  "kicked": "notice",
  "offline": "notice",
  "wrong-version": "notice",
};

function withPhase(phase: TabPhase, part = {}): TabModel {
  return { ...opened, asked: true, snapshot: { ...snapshot, phase, ...part } };
}

Deno.test("before the click the first screen names everything a person must know", function test() {
  const view = tabScreen(opened) as WelcomeView;
  assert.equal(view.kind, "welcome");
  const text = [view.title, view.lead, ...view.sections.map((section) => section.text), view.adapter].join(
    "\n",
  );
  for (
    const fact of [
      invite.runName,
      invite.operator,
      "212 MB",
      "3.4 MB",
      "6.36 million",
      "No files",
      "Apple M2",
    ]
  ) {
    assert.ok(text.includes(fact), fact);
  }
  assert.ok(text.includes("network address"));
});

Deno.test("the button waits for the adapter, and a software adapter is called slow", function test() {
  const waiting = tabScreen({ ...opened, inspection: null }) as WelcomeView;
  assert.equal(waiting.ready, false);
  assert.equal(waiting.adapter, null);
  const slow = tabScreen({ ...opened, inspection: { ...inspection, software: true } }) as WelcomeView;
  assert.equal(slow.ready, true);
  assert.match(slow.adapter ?? "", /slowly/);
});

Deno.test("without WebGPU the processor computes, unless the address asks for WebGPU", function test() {
  const missing = { webgpu: "missing", adapter: "", software: false } as const;
  const screen = (part: Partial<TabModel>) => tabScreen({ ...opened, inspection: missing, ...part });
  for (const engine of ["auto", "tfjs-wasm", "cpu"] as const) {
    const { adapter, ready } = screen({ engine }) as WelcomeView;
    assert.ok(ready);
    assert.match(adapter ?? "", /no WebGPU, so the processor computes/);
  }
  assert.match((screen({ secure: false }) as WelcomeView).adapter ?? "", /https/);
  const refused = { ...missing, webgpu: "no-adapter" } as const;
  assert.match((screen({ inspection: refused }) as WelcomeView).adapter ?? "", /offers no graphics adapter/);
  for (const engine of ["wgsl", "tfjs-webgpu"] as const) assert.equal(screen({ engine }).kind, "notice");
});

Deno.test("the group's size is said in words for none, one and many", function test() {
  const lead = (peers: number) =>
    (tabScreen({ ...opened, invite: { ...invite, peers } }) as WelcomeView).lead;
  assert.match(lead(0), /You would be the first/);
  assert.match(lead(1), /One computer is lent/);
  assert.match(lead(5), /5 computers are lent/);
});

for (const [phase, kind] of Object.entries(KIND_OF_PHASE) as [TabPhase, "live" | "notice"][]) {
  Deno.test(`phase ${phase} shows a ${kind} screen`, function test() {
    const screen = tabScreen(withPhase(phase));
    assert.equal(screen.kind, kind);
    assert.notEqual(screen.announce, "");
  });
}

Deno.test("training says which stage and layers, counted from one", function test() {
  const view = tabScreen(withPhase("training")) as LiveView;
  assert.equal(view.sentence, "This computer holds stage 2 of 4 (layers 3 to 4).");
  assert.deepEqual(view.stages.map((cell) => cell.mine), [false, true, false, false]);
  assert.equal(view.progress.text, "Step 341 of 2,000");
});

Deno.test("a tab is told whether it would be missed, and how to go then", function test() {
  const standing = (phase: TabPhase, part = {}) => (tabScreen(withPhase(phase, part)) as LiveView).standing;
  assert.match(standing("training")?.text ?? "", /you may leave at any time/);
  const alone = standing("training", { alone: [[2, 4], [6, 7]] });
  assert.equal(alone?.tone, "info");
  assert.match(
    alone?.text ?? "",
    /^Only this computer holds layers 3 to 4 and layer 7\. .*closing the tab does not/,
  );
  assert.equal(standing("training", { stage: null }), null);
  assert.equal(standing("spare"), null);
  assert.equal(standing("finishing", { alone: [[2, 4]] }), null);
});

Deno.test("own time stands against the group's, and is absent before the first step", function test() {
  const pace = (tabScreen(withPhase("training")) as LiveView).pace;
  assert.equal(pace?.own, "182 ms");
  assert.equal(pace?.group, "644 ms");
  assert.ok(Math.abs((pace?.ownShare ?? 0) - 182 / 644) < 1e-12);
  assert.equal((tabScreen(withPhase("training", { groupStepMs: 0 })) as LiveView).pace, null);
});

Deno.test("buttons fit the phase", function test() {
  const buttons = function (phase: TabPhase) {
    const { paused, canPause, canFinish } = tabScreen(withPhase(phase)) as LiveView;
    return [paused, canPause, canFinish];
  };
  assert.deepEqual(buttons("training"), [false, true, true]);
  assert.deepEqual(buttons("paused"), [true, false, true]);
  assert.deepEqual(buttons("finishing"), [false, false, false]);
  assert.deepEqual(buttons("joining"), [false, false, false]);
});

Deno.test("green is for training; what is not held yet is words, not zeros", function test() {
  const tone = (phase: TabPhase) => (tabScreen(withPhase(phase)) as LiveView).tone;
  assert.deepEqual([tone("training"), tone("paused"), tone("joining")], ["good", "warn", "info"]);
  const { facts } = tabScreen(withPhase("joining", { params: 0, memoryBytes: 0 })) as LiveView;
  assert.equal(facts.filter((fact) => fact.value === "none yet").length, 2);
});

Deno.test("the announcement does not change with every step", function test() {
  const one = tabScreen(withPhase("training", { step: 10, ownStepMs: 100 }));
  const two = tabScreen(withPhase("training", { step: 11, ownStepMs: 140 }));
  assert.equal(one.announce, two.announce);
  assert.notEqual(one.announce, tabScreen(withPhase("paused")).announce);
});

Deno.test("a leaver sees what was given; who gave nothing sees no figures", function test() {
  const given = tabScreen(withPhase("left")) as NoticeView;
  assert.equal(given.facts[0]?.value, "5,586,944");
  assert.deepEqual((tabScreen(withPhase("kicked", { tokens: 0 })) as NoticeView).facts, []);
});

Deno.test("a refusal outranks everything else", function test() {
  const screen = tabScreen({ ...withPhase("training"), refusal: { code: "bad-token", message: "" } });
  assert.equal(screen.kind, "notice");
  assert.equal((screen as NoticeView).title, "This link is not valid");
});

Deno.test("nothing in a snapshot can break a screen: no stage, no layers, zero steps", function test() {
  const view = tabScreen(
    withPhase("training", { stage: null, layers: null, maxIters: 0, step: 0 }),
  ) as LiveView;
  assert.equal(view.sentence, "This computer holds no stage yet.");
  assert.equal(view.progress.max, 1);
});

Deno.test("fixtures cover every phase", function test() {
  const covered = new Set(
    fixtures.flatMap(({ page, model }) => page === "contributor" ? [model.snapshot?.phase] : []),
  );
  assert.deepEqual(Object.keys(KIND_OF_PHASE).filter((phase) => !covered.has(phase as TabPhase)), []);
});
