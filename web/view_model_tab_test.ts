// Tests of the contributor's screens: which screen shows when, and that it says what the snapshot says.
import assert from "node:assert/strict";
import type { TabPhase } from "../peer/wire/status.ts";
import { fixtures } from "./fixtures.ts";
import { invite, snapshot } from "./fixtures_data.ts";
import { opened, strict } from "./fixtures_tab.ts";
import {
  type LiveView,
  type NoticeView,
  type TabModel,
  tabScreen,
  type WelcomeView,
} from "./view_model_tab.ts";

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
  const text = [view.title, view.lead, ...view.terms.map((term) => term.text)].join("\n");
  for (const fact of [invite.runName, invite.operator, "212 MB", "3.4 MB", "6.36 million", "No files"]) {
    assert.ok(text.includes(fact), fact);
  }
  for (const fact of ["network address", "stored", "Withdraw", "30 days", "Pause"]) {
    assert.ok(text.includes(fact) || view.terms.some(({ title }) => title.includes(fact)), fact);
  }
  assert.equal(view.agreed, false);
});

Deno.test("an agreement that stands, is old, or is of another text is said to be so", function test() {
  const screen = (standing: TabModel["consent"]["standing"]) =>
    tabScreen({ ...opened, consent: { standing, until: "13 April 2026" } }) as WelcomeView;
  assert.equal(screen("none").consent, "");
  assert.match(screen("stands").consent, /asked again after 13 April 2026/);
  assert.match(screen("expired").consent, /read it again/);
  assert.match(screen("changed").consent, /changed since you agreed/);
  assert.deepEqual(
    (["none", "stands", "expired", "changed"] as const).map((it) => screen(it).agreed),
    [false, true, false, false],
  );
});

Deno.test("without WebGPU the processor computes, unless the address asks for WebGPU", function test() {
  const screen = (part: Partial<TabModel>) => tabScreen({ ...opened, webgpu: false, ...part });
  assert.match((screen({}) as WelcomeView).adapter, /no WebGPU, so it is slower/);
  assert.match((screen({ secure: false }) as WelcomeView).adapter, /https/);
  for (const engine of ["tfjs-wasm", "cpu"] as const) {
    assert.match((screen({ engine }) as WelcomeView).adapter, /as the address asks/);
  }
  for (const engine of ["wgsl", "tfjs-webgpu"] as const) {
    assert.equal((screen({ engine }) as NoticeView).title, "This browser has no WebGPU");
    assert.equal((screen({ engine, secure: false }) as NoticeView).title, "WebGPU needs a secure address");
    assert.equal(screen({ engine, webgpu: true }).kind, "welcome");
  }
});

Deno.test("a day whose limit is reached begins nothing, and ends what had begun with its reason", function test() {
  const full = { limits: strict, ruling: { verdict: "finish", why: "day-up" } } as const;
  assert.match((tabScreen({ ...opened, ...full }) as WelcomeView).blocked, /upload limit of 2 GB/);
  assert.equal((tabScreen(opened) as WelcomeView).blocked, "");
  const left = tabScreen({ ...withPhase("left"), limits: strict, ended: "day-down" }) as NoticeView;
  assert.match(left.what, /download limit of 4 GB is reached; it ends at midnight/);
});

Deno.test("who says no, and who withdraws, is told that nothing runs", function test() {
  const refused = tabScreen({ ...opened, declined: "refused" }) as NoticeView;
  assert.match(refused.what, /computes nothing for the run and has sent it nothing/);
  assert.equal(refused.canWithdraw, false);
  const withdrawn = tabScreen({ ...withPhase("training"), declined: "withdrawn" }) as NoticeView;
  assert.match(withdrawn.what, /stored in this browser is deleted/);
  assert.equal(withdrawn.canWithdraw, false);
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

Deno.test("buttons fit the phase, and each says what it costs", function test() {
  const verbs = (phase: TabPhase, part = {}, model: Partial<TabModel> = {}) =>
    (tabScreen({ ...withPhase(phase, part), ...model }) as LiveView).verbs;
  const buttons = (...args: Parameters<typeof verbs>) =>
    verbs(...args).map(({ id, enabled }) => enabled ? id : `(${id})`).join(" ");
  assert.equal(buttons("training"), "pause finish leave");
  assert.equal(buttons("paused", {}, { ownerPaused: true }), "resume finish leave");
  assert.equal(buttons("paused"), "pause finish leave", "it is the limits that wait, not the owner");
  assert.equal(buttons("finishing"), "(pause) (finish) leave");
  assert.equal(buttons("joining"), "(pause) (finish) leave");
  const costs = (part = {}) => verbs("training", part).map(({ cost }) => cost);
  assert.match(costs()[1] ?? "", /^Costs the others nothing\. .*about 1\.3 s/);
  assert.match(costs()[2] ?? "", /do again what this computer had in hand/);
  const alone = costs({ alone: [[2, 4]] });
  assert.match(alone[1] ?? "", /until another computer has fetched your piece/);
  assert.match(alone[2] ?? "", /since the last snapshot of layers 3 to 4 may have to be done again/);
  assert.match(costs({ stage: null })[2] ?? "", /nothing is lost/);
});

Deno.test("a computer that waits for its limits says for what, and that it goes on by itself", function test() {
  const view = tabScreen({
    ...withPhase("paused"),
    limits: strict,
    ruling: { verdict: "wait", why: "battery" },
  }) as LiveView;
  assert.equal(view.phase, "Waiting");
  assert.match(view.sentence, /goes on at 50%/);
  const own = tabScreen({ ...withPhase("paused"), ownerPaused: true }) as LiveView;
  assert.equal(own.phase, "Paused");
  assert.match(own.sentence, /until you resume/);
});

Deno.test("why it is slow is said: limits, a hidden tab, a battery, a busy machine", function test() {
  const pace = { work: "", recentMs: Array<number>(9).fill(382), bestMs: 182 };
  const slow = (part = {}, model: Partial<TabModel> = {}) =>
    (tabScreen({ ...withPhase("training", part), ...model }) as LiveView).slow;
  assert.deepEqual(slow(), []);
  assert.match(
    slow({ held: { by: "duty", share: 0.38 } }).join(),
    /limit makes this computer rest 38% of the time/,
  );
  assert.match(slow({ held: { by: "up", share: 0.1 } }).join(), /upload limit/);
  assert.match(slow({ held: { by: "down", share: 0.1 } }).join(), /download limit/);
  assert.match(slow({ writes: true }).join(), /helps to write a text/);
  assert.deepEqual(slow({ note: "the address does not serve" }), ["The address does not serve."]);
  assert.match(slow({}, { pace, hidden: true }).join(), /2\.1 times as long .* in the background/);
  assert.match(slow({}, { pace, onBattery: true }).join(), /battery/);
  assert.match(slow({}, { pace }).join(), /something else keeps this computer busy/);
  assert.deepEqual(slow({}, { pace: { ...pace, bestMs: 300 } }), []);
});

Deno.test("a relayed connection says why", function test() {
  const peers = (links: object) =>
    (tabScreen(withPhase("training", { links })) as LiveView).facts.find(({ label }) =>
      label === "Peers connected"
    )
      ?.value;
  const why = "link-timeout: no direct path in 10 s";
  assert.equal(peers({ direct: 1, relayed: 2, why }), "1 direct, 2 relayed (no direct path in 10 s)");
  assert.equal(peers({ direct: 1, relayed: 0 }), "1 direct, 0 relayed");
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
  assert.equal(tabScreen({ ...withPhase("training"), note: "Copied." }).announce, "Copied.");
});

Deno.test("a leaver sees what was given; who gave nothing sees no figures", function test() {
  const given = tabScreen(withPhase("left")) as NoticeView;
  assert.equal(given.facts[0]?.value, "5,586,944");
  assert.deepEqual((tabScreen(withPhase("kicked", { tokens: 0 })) as NoticeView).facts, []);
  const all = tabScreen({ ...withPhase("left"), given: { ...opened.given, steps: 1204, ms: 4_260_000 } });
  assert.deepEqual((all as NoticeView).facts.slice(-2).map(({ value }) => value), ["1,204", "1 h 11 min"]);
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
