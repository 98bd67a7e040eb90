// Tests of the admin's board and its pipeline map: what is shown follows the status, and what is stale says so.
import assert from "node:assert/strict";
import type { RunState } from "../peer/wire/status.ts";
import { fixtures } from "./fixtures.ts";
import { bareStages, peers, stages, status } from "./fixtures_data.ts";
import { safetyOf } from "./fixtures_safety.ts";
import {
  type AdminModel,
  adminScreen,
  type BoardView,
  EVENTS_SHOWN_MAX,
  eventsLike,
  SILENT_MARK_MS,
} from "./view_model_admin.ts";
import { pipelineView } from "./view_model_pipeline.ts";

function board(
  part: Partial<typeof status> = {},
  model: Partial<AdminModel> = {},
): BoardView & { announce: string } {
  const screen = adminScreen({ status: { ...status, ...part }, refusal: null, note: "", ...model });
  assert.equal(screen.kind, "board");
  return screen as BoardView & { announce: string };
}

Deno.test("a refusal before the first status is a notice; later it only marks the board as stale", function test() {
  const refusal = { code: "offline", message: "no answer" };
  assert.equal(adminScreen({ status: null, refusal, note: "" }).kind, "notice");
  assert.match(board({}, { refusal }).stale ?? "", /last figures/);
  assert.equal(board().stale, null);
});

Deno.test("a token that stops being valid hides the board", function test() {
  const refusal = { code: "bad-token", message: "" };
  assert.equal(adminScreen({ status, refusal, note: "" }).kind, "notice");
});

Deno.test("orders fit the state", function test() {
  const controls = (state: RunState) => board({ state }).controls;
  assert.deepEqual(controls("training"), { toggle: "pause", canStop: true });
  assert.deepEqual(controls("waiting"), { toggle: "pause", canStop: true });
  assert.deepEqual(controls("paused"), { toggle: "resume", canStop: true });
  assert.deepEqual(controls("finished"), { toggle: null, canStop: false });
  assert.deepEqual(controls("failed"), { toggle: null, canStop: false });
});

Deno.test("readings are never blank before the first step", function test() {
  const view = board({ trainLoss: null, valLoss: null, gradNorm: null });
  assert.deepEqual(view.readings.filter((fact) => fact.value === ""), []);
  assert.equal(view.readings.find((fact) => fact.label === "Training loss")?.value, "not yet");
});

Deno.test("steps at risk are words and a tone", function test() {
  assert.equal(board({ stepsAtRisk: 0 }).risk.tone, "good");
  assert.match(board({ stepsAtRisk: 0 }).risk.text, /any one computer may vanish/);
  assert.match(board({ stepsAtRisk: 0, step: 0, safety: [] }).risk.text, /training has not begun/);
  const bare = { stepsAtRisk: 0, safety: safetyOf(bareStages) };
  assert.match(board(bare).risk.text, /newest snapshot has everything/);
  assert.match(board({ stepsAtRisk: 1 }).risk.text, /^1 committed step at risk/);
  const missed = (count: number) => {
    const some = peers.map((peer, i) => ({ ...peer, stepsAtRisk: i < count ? 3 : 0 }));
    return board({ stepsAtRisk: 3, peers: some }).risk.text;
  };
  assert.equal(
    missed(1),
    "3 committed steps at risk: if tab-4f21 vanishes now, they are done again.",
  );
  assert.match(missed(2), /: if tab-4f21 or deno-81c0 vanishes now/);
  assert.match(missed(5), /: if one of 5 computers vanishes now/);
  assert.match(missed(0), /: if one of the computers vanishes now/);
});

Deno.test("a silent peer is marked before a hidden one", function test() {
  const [peer] = peers;
  assert.ok(peer);
  const row = (part: Partial<typeof peer>) => board({ peers: [{ ...peer, ...part }] }).peers[0];
  assert.equal(row({})?.health, "ok");
  assert.equal(row({ hidden: true })?.health, "hidden tab");
  assert.equal(row({ hidden: true, suspect: 2 })?.health, "2 totals differed");
  assert.equal(row({ suspect: 1, silentMs: SILENT_MARK_MS })?.health, "silent for 3 s");
  assert.equal(row({ hidden: true, silentMs: SILENT_MARK_MS })?.health, "silent for 3 s");
  assert.equal(row({ silentMs: SILENT_MARK_MS - 1 })?.tone, "good");
});

Deno.test("a peer's row says what it keeps and what would be lost with it", function test() {
  const [peer] = peers;
  const row = (part: Partial<typeof peer>) => board({ peers: [{ ...peer!, ...part }] }).peers[0]!;
  assert.deepEqual([row({ retainedBytes: 0 }).kept, row({}).kept], ["", "keeps 1.18 MB"]);
  assert.deepEqual([row({}).loss, row({ stepsAtRisk: 1 }).loss], ["nothing lost", "1 step done again"]);
  assert.match(row({}).removal, /^Its work goes to other computers/);
  assert.match(row({ stepsAtRisk: 4 }).removal, /^Nobody else holds its layers: 4 steps would be done again/);
});

Deno.test("the newest events come first, and their number is bounded", function test() {
  const events = Array.from(
    { length: 500 },
    (_, seq) => ({ seq, atMs: seq, kind: "peer", text: `event ${seq}` }),
  );
  const shown = board({ events }).events;
  assert.equal(shown.length, EVENTS_SHOWN_MAX);
  assert.equal(shown[0]?.text, "event 499");
});

Deno.test("events are found by every word of what is looked for, in kind or text, whatever its case", () => {
  const view = adminScreen({ status, refusal: null, note: "" });
  assert.ok(view.kind === "board");
  const found = (wanted: string) => eventsLike(view.events, wanted).length;
  assert.equal(found(""), view.events.length);
  assert.equal(found("  "), view.events.length);
  assert.equal(found("CHECKPOINT"), 2);
  assert.equal(found("checkpoint 300"), 1);
  assert.equal(found("checkpoint nothing"), 0);
});

Deno.test("the newest checkpoint comes first and an unmeasured loss is words", function test() {
  const { checkpoints } = board();
  assert.deepEqual(checkpoints.map((checkpoint) => checkpoint.step), ["300", "200", "100"]);
  assert.equal(checkpoints[2]?.val, "not measured");
});

Deno.test("a run with adapters offers them by themselves, too", function test() {
  const config = { ...status.config, lora_rank: 8 };
  assert.ok(board().checkpoints.every(({ adapters }) => !adapters));
  assert.ok(board({ config }).checkpoints.every(({ adapters }) => adapters));
  assert.ok(board({ config }).checkpoints.every(({ files }) => files.at(-1) === "base.safetensors"));
  assert.ok(board().checkpoints.every(({ files }) => !files.includes("base.safetensors")));
});

Deno.test("the outcome of an order is announced instead of the state", function test() {
  assert.equal(board({}, { note: "Pausing." }).announce, "Pausing.");
  assert.match(board().announce, /^Run is training/);
});

Deno.test("pipeline map: one column for each stage, one row for each replica, gaps where there is none", function test() {
  const view = pipelineView({ ...status, stages: bareStages });
  assert.deepEqual(view.columns.map((column) => column.title), ["Stage 1", "Stage 2", "Stage 3", "Stage 4"]);
  assert.equal(view.columns[0]?.holds, "embedding, layers 1 to 2");
  assert.equal(view.columns[3]?.holds, "layers 7 to 8, head");
  assert.deepEqual(view.rows.map((row) => row.map((cell) => cell?.peer ?? null)), [
    ["tab-4f21", "tab-09ae", "tab-c377", "deno-1d5b"],
    ["deno-81c0", null, null, null],
  ]);
  assert.deepEqual(view.spare, ["tab-77e2 (spare)"]);
  assert.equal(view.summary, "4 stages on 5 peers, 1 spare peer.");
});

Deno.test("pipeline map: a shadow is named as what it is, without a pace of its own", function test() {
  assert.equal(pipelineView(status).rows[1]?.[1]?.work, "shadow: keeps a copy, computes nothing");
  const [first, ...rest] = stages;
  const learner = { peer: "tab-77e2", microBatches: [], learning: true };
  const view = pipelineView({
    ...status,
    stages: [{ ...first!, replicas: [...first!.replicas, learner] }, ...rest],
  });
  assert.equal(view.rows[2]?.[0]?.work, "fetching the state, computes nothing yet");
});

Deno.test("pipeline map: a planned peer that is gone stays visible as gone", function test() {
  const view = pipelineView({ ...status, stages, peers: peers.filter((peer) => peer.id !== "tab-c377") });
  assert.equal(view.rows[0]?.[2]?.present, false);
  assert.match(view.rows[0]?.[2]?.adapter ?? "", /gone/);
});

Deno.test("pipeline map: no plan is a sentence, not an empty table", function test() {
  const view = pipelineView({ ...status, stages: [] });
  assert.deepEqual(view.rows, []);
  assert.match(view.summary, /^No plan yet/);
});

Deno.test("fixtures cover every state of a run", function test() {
  const all: RunState[] = ["waiting", "warming up", "training", "paused", "finished", "failed"];
  const covered = new Set(
    fixtures.flatMap(({ page, model }) => page === "admin" ? [model.status?.state] : []),
  );
  assert.deepEqual(all.filter((state) => !covered.has(state)), []);
});

Deno.test("a computer that was given a name is listed with it", function test() {
  const [first, second] = peers;
  const rows = board({ peers: [{ ...first!, name: "Ada’s laptop" }, second!] }).peers;
  assert.deepEqual(rows.map(({ runtime }) => runtime), ["“Ada’s laptop”, browser tab", "Deno process"]);
});

Deno.test("a pinned computer is listed with its stage, and what holds now is offered first", function test() {
  const peers = status.peers.slice(0, 2).map((peer, i) => i === 0 ? { ...peer, pin: 2 } : peer);
  const [pinned, free] = board({ peers }).peers;
  assert.equal(pinned?.pinned, "pinned to stage 3");
  assert.deepEqual(pinned?.pins.map(({ value }) => value), ["3", "any", "1", "2", "4"]);
  assert.equal(free?.pinned, "");
  assert.deepEqual(free?.pins.map(({ value }) => value), ["any", "1", "2", "3", "4"]);
});
