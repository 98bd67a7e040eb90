// The list of runs: who sees what, and what may be done with a run by where it stands.
import assert from "node:assert/strict";
import type { HubRun } from "../peer/wire/hub.ts";
import { runsScreen, type RunsView } from "./view_model_runs.ts";

const RUN: HubRun = {
  ...{ id: "a", name: "A", operator: "me", place: "open", busy: "", state: "training", reason: "", step: 5 },
  ...{
    maxIters: 10,
    peers: 2,
    params: 1000,
    trainLoss: 2,
    valLoss: null,
    dataset: "moby-dick",
    listed: false,
    publicText: false,
  },
  ...{ createdAt: 1, joinLink: "http://x/r/a/#t", adminLink: "http://x/r/a/admin#u" },
};

function view(runs: HubRun[], admin = true): RunsView {
  const screen = runsScreen({ list: { admin, runs }, refusal: null, note: "" });
  assert.equal(screen.kind, "list");
  return screen as RunsView;
}

function only(part: Partial<HubRun>) {
  return view([{ ...RUN, ...part }]).groups[0]!.rows[0]!;
}

Deno.test("runs: what may be done follows from where a run stands, and nothing while something is being done", () => {
  assert.deepEqual(only({}).can, { archive: true, open: null, clone: true, list: true, remove: false });
  assert.deepEqual(only({ place: "archived" }).can, {
    ...{ archive: false, open: "bring back", clone: true, list: false, remove: true },
  });
  assert.equal(only({ place: "broken" }).can.open, "open");
  assert.equal(only({ place: "broken", maxIters: 0 }).progress.text, "Steps unknown");
  const busy = only({ busy: "archiving" });
  assert.deepEqual(busy.can, { archive: false, open: null, clone: false, list: false, remove: false });
  assert.deepEqual([busy.state.word, busy.joinLink], ["Archiving", null]);
});

Deno.test("runs: a run with which contributors may write says so", () => {
  const labels = (part: Partial<HubRun>) => only(part).facts.map(({ label }) => label);
  assert.ok(labels({ publicText: true }).includes("Writing text"));
  assert.ok(!labels({}).includes("Writing text"));
});

Deno.test("runs: archiving says what it means for those who are in it", () => {
  assert.match(only({}).archiveText, /2 computers sent home/);
  assert.doesNotMatch(only({ peers: 0 }).archiveText, /sent home/);
});

Deno.test("runs: groups by place; everybody else sees one list, or a sentence", () => {
  const places = (["open", "closed", "broken", "archived"] as const).map((place) => ({ ...RUN, place }));
  assert.deepEqual(view(places).groups.map(({ title, rows }) => [title, rows.length]), [
    ...[["Open", 1], ["Not open", 2], ["Archived", 1]] as [string, number][],
  ]);
  assert.deepEqual(view([RUN], false).groups.map(({ title }) => title), ["Open to everybody"]);
  assert.match(view([], false).empty!, /No run is open to everybody/);
  assert.match(view([]).empty!, /There is no run yet/);
});

Deno.test("runs: a stale list says so, and a wrong token is a notice", () => {
  const list = { admin: true, runs: [RUN] };
  const stale = runsScreen({ list, refusal: { code: "offline", message: "x" }, note: "" }) as RunsView;
  assert.match(stale.stale!, /out of date/);
  assert.equal(runsScreen({ list, refusal: { code: "bad-token", message: "x" }, note: "" }).kind, "notice");
  assert.equal(runsScreen({ list: null, refusal: null, note: "" }).kind, "loading");
});
