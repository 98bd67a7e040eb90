// The dry run over HTTP: what is shown, what is applied, and that nobody but the organizer hears the reasons.
import assert from "node:assert/strict";
import { ADMIN, admit, assertProblem, JOIN, openSite } from "../../test/support/site.ts";
import type { ReplanPreview, RunStatus } from "../../peer/wire/status.ts";

Deno.test("http: a re-plan is previewed, and applied only where that was asked for", async () => {
  await using site = await openSite();
  const replan = (body: string) => site.ask("/api/replan", { method: "POST", token: ADMIN, body });
  const early: ReplanPreview = await (await replan("{}")).json();
  assert.deepEqual([early.possible, early.transfers], [false, []]);
  assert.match(early.reason, /^No layers are placed yet/);
  for (const peer of ["a", "b"]) admit(site, peer);
  const { state } = site.shell.core;
  assert.equal(state.view!.stages.length, 2);
  const preview: ReplanPreview = await (await replan('{"apply":false}')).json();
  assert.ok(preview.possible && preview.before! > 0 && preview.after! > 0, JSON.stringify(preview));
  assert.deepEqual([preview.bytes, preview.stages.length, state.replanDue], [0, 2, null]);
  for (const body of ['{"apply":1}', '{"apply":"yes"}', '{"apply":{"toString":1}}']) {
    await assertProblem(await replan(body), 400, "usage");
  }
  const applied: ReplanPreview = await (await replan('{"apply":true}')).json();
  assert.deepEqual(applied, preview);
  assert.equal(state.replanDue, "planned anew by the organizer");
});

Deno.test("http: the plan's sentences name peers, so a volunteer gets its figures alone", async () => {
  await using site = await openSite();
  for (const peer of ["a", "b"]) admit(site, peer);
  const seen = async (token: string): Promise<RunStatus> =>
    await (await site.ask("/api/status", { token })).json();
  const [volunteer, organizer] = [await seen(JOIN), await seen(ADMIN)];
  assert.ok(organizer.plan!.reasons.length > 0 && organizer.plan!.seconds! > 0);
  assert.deepEqual(volunteer.plan, { ...organizer.plan!, reasons: [], changes: [], standBy: [] });
});
