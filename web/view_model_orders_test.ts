// What the organizer reads before ordering: the difference that a change makes, what is refused, alerts, who may come in.
import assert from "node:assert/strict";
import { CHANGEABLE_KEYS } from "../peer/wire/changes.ts";
import type { RunStatus } from "../peer/wire/status.ts";
import { losses, status } from "./fixtures_data.ts";
import { invited, ordered } from "./fixtures_orders.ts";
import { alertsOf, draftView, invitationsView, ordersView, SPIKE_WINDOW } from "./view_model_orders.ts";

function alerts(part: Partial<RunStatus>): string[] {
  return alertsOf({ ...status, ...part }).map((alert) => `${alert.tone}: ${alert.text}`);
}

Deno.test("orders: a change is shown with its difference and the step it counts from", () => {
  const draft = (text: string, step = "400", key: typeof CHANGEABLE_KEYS[number] = "learning_rate") =>
    draftView({ key, text, step }, status);
  const shown = draft("0.001");
  assert.ok(shown.ok);
  assert.deepEqual([shown.step, shown.set], [400, { learning_rate: 0.001 }]);
  assert.match(shown.text, /^learning_rate 0.0006 → 0.001 from step 400 on/);
  const past = draft("0.001", "3");
  assert.ok(past.ok && past.step === status.step + 1, "the past cannot be changed");
  const word = draft("1f1b", "400", "schedule");
  assert.ok(word.ok && word.set.schedule === "1f1b");
  assert.ok(!word.text.includes("weights"));
  const delayed = draft("2bw", "400", "schedule");
  assert.match(delayed.text, /anew then\. 2bw is asynchronous: .* one step old/);
  const flag = draft("false", "400", "shadows");
  assert.ok(flag.ok && flag.set.shadows === false);
});

Deno.test("orders: what is no change, or no value, is said before it is sent", () => {
  const refused: [string, string, RegExp][] = [
    ["", "400", /learning_rate is 0.0006; write a number/],
    ["fast", "400", /write a number/],
    ["0.0006", "400", /is 0.0006 already/],
    ["0.1", "soon", /whole number/],
    ["0.1", "", /whole number/],
    ["0.1", "-1", /whole number/],
  ];
  for (const [text, step, expected] of refused) {
    const shown = draftView({ key: "learning_rate", text, step }, status);
    assert.ok(!shown.ok && expected.test(shown.text), shown.text);
  }
  const flag = draftView({ key: "shadows", text: "no", step: "400" }, status);
  assert.ok(!flag.ok && /true or false/.test(flag.text));
});

Deno.test("orders: changes stand with what they were, those in force and those to come; a run that is over has no form", () => {
  const { changes, keys, soonest, open } = ordersView({ ...status, ...ordered });
  assert.deepEqual(changes.map((it) => `${it.text}, ${it.when}`), [
    "schedule dynamic → 1f1b, from step 500 on",
    "learning_rate 0.001 → 0.0006, min_lr 0.0001 → 0.00006, in force since step 200",
  ]);
  assert.deepEqual(keys.map((it) => it.key), [...CHANGEABLE_KEYS]);
  assert.deepEqual([soonest, open], [status.step + 1, true]);
  assert.equal(ordersView({ ...status, state: "finished" }).open, false);
});

Deno.test("alerts: none while all is well; a jump, a number that is none, a stall and a lone holder are told", () => {
  assert.deepEqual(alerts({}), []);
  const all = alerts(ordered);
  assert.equal(all.length, 4);
  assert.match(all[0]!, /^warn: The loss has jumped to 4.2/);
  assert.match(all[1]!, /^warn: No step for 41 s; one usually takes 640 ms/);
  assert.match(all[2]!, /^warn: Stage 3 has one holder left/);
  assert.match(all[3]!, /^bad: The coordinator’s disk is nearly full/);
  const [nan] = alerts({ losses: [...losses(30), { step: 31, train: NaN }] });
  assert.match(nan!, /^bad: The loss at step 31 is not a number: go back to a checkpoint/);
});

Deno.test("alerts: a start is no jump, and a short wait no stall", () => {
  assert.deepEqual(alerts({ losses: [...losses(SPIKE_WINDOW - 1), { step: 20, train: 99 }] }), []);
  assert.deepEqual(alerts({ pace: { sinceCommitMs: 9_000, stepMs: 100 } }), []);
  assert.deepEqual(alerts({ pace: { sinceCommitMs: 60_000, stepMs: 10_000 } }), []);
  assert.deepEqual(alerts({ pace: { sinceCommitMs: 60_000, stepMs: 0 } }), []);
});

Deno.test("invitations: the newest first, with who is in and how long it lasts", () => {
  const view = invitationsView(invited.invitations ?? null, invited.now ?? 0)!;
  assert.deepEqual([view.open, view.text], [false, false]);
  assert.equal(invitationsView({ open: true, invitations: [] }, 0)!.text, null);
  assert.deepEqual(view.rows.map((row) => [row.title, row.state, row.tone]), [
    ["the substitute teacher (i3)", "0 of 1 computer in, ended", "bad"],
    ["i2", "1 of 1 computer in, ends in 40 min 0 s", "info"],
    ["row 3 (i1)", "1 of 3 computers in, ends in 5 h 0 min", "good"],
  ]);
  assert.equal(invitationsView(null, 0), null);
});

Deno.test("alerts: a disk that is nearly full says how much is left and for how many checkpoints", () => {
  const disk = { freeBytes: 61e6, sizeBytes: 64e9, low: true };
  const told =
    "bad: The coordinator’s disk is nearly full: 61 MB of 64 GB left, room for 2 more checkpoints. " +
    "Delete checkpoints, or free space.";
  assert.ok(alerts({ disk }).includes(told), alerts({ disk }).join());
  assert.ok(alerts({ disk, checkpoints: [] }).some((text) => /64 GB left\. Delete/.test(text)));
  const nearlyFull = /nearly full/;
  assert.ok(!alerts({ disk: { ...disk, low: false } }).some((text) => nearlyFull.test(text)));
  assert.ok(!alerts({}).some((text) => nearlyFull.test(text)));
});
