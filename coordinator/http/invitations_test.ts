// Invitations over HTTP: made, listed, used and withdrawn by the organizer, and by nobody else.
import assert from "node:assert/strict";
import { ADMIN, admit, assertProblem, JOIN, openSite, type Site } from "../../test/support/site.ts";
import type { RunStatus } from "../../peer/wire/status.ts";
import { TextService } from "./text_service.ts";
import type { Invitations, InvitationStatus } from "../../peer/wire/invitations.ts";

function post(site: Site, path: string, body: unknown, token = ADMIN): Promise<Response> {
  return site.ask(path, { method: "POST", token, body: JSON.stringify(body) });
}

async function list(site: Site): Promise<Invitations> {
  return await (await site.ask("/api/invitations", { token: ADMIN })).json();
}

Deno.test("invitations: one is made with a link of its own, which reads what the public one reads", async () => {
  await using site = await openSite();
  const made: InvitationStatus = await (await post(site, "/api/invitations", { seats: 3, note: "row 3" }))
    .json();
  assert.deepEqual([made.id, made.seats, made.note, made.ended, made.peers], ["i1", 3, "row 3", false, []]);
  const token = new URL(made.link).hash.slice(1);
  assert.match(token, /^[\w-]{22}$/);
  for (const path of ["/api/invite", "/api/status", "/api/corpus"]) {
    assert.equal((await site.ask(path, { token })).status, 200, path);
  }
  await assertProblem(await post(site, "/api/control", { action: "stop" }, token), 401, "bad-token");
  assert.deepEqual(await list(site), { open: true, invitations: [made] });
});

Deno.test("invitations: withdrawing one puts out who came in with it, and nobody else", async () => {
  await using site = await openSite();
  const { door } = site;
  await post(site, "/api/invitations", {});
  admit(site, "a");
  admit(site, "b");
  door.seat("a", "i1");
  assert.deepEqual((await list(site)).invitations[0]!.peers, ["a"]);
  const answer = await site.ask("/api/invitations/i1", { method: "DELETE", token: ADMIN });
  assert.deepEqual(await answer.json(), { open: true, invitations: [] });
  assert.deepEqual(Object.keys(site.shell.core.state.peers), ["b"]);
  const again = await site.ask("/api/invitations/i1", { method: "DELETE", token: ADMIN });
  await assertProblem(again, 404, "usage");
});

Deno.test("invitations: with the public link closed its token reads nothing", async () => {
  await using site = await openSite();
  assert.equal((await post(site, "/api/public", { open: false })).status, 200);
  await assertProblem(await site.ask("/api/invite", { token: JOIN }), 401, "bad-token");
  assert.equal((await list(site)).open, false);
  await post(site, "/api/public", { open: true });
  assert.equal((await site.ask("/api/invite", { token: JOIN })).status, 200);
});

Deno.test("invitations: whether whoever may join writes text is switched while the run goes on, and who did it is logged", async () => {
  const texts = new TextService(() => assert.fail("nobody writes"));
  await using site = await openSite({ texts, publicText: true });
  const models = async () => (await site.ask("/v1/models", { token: JOIN })).status;
  const told = async () => (await (await site.ask("/api/invite", { token: JOIN })).json()).text;
  assert.deepEqual([(await list(site)).text, await models(), await told()], [true, 200, true]);
  const closed = await post(site, "/api/public_text", { open: false });
  assert.deepEqual(await closed.json(), { open: true, text: false, invitations: [] });
  assert.deepEqual([await models(), await told()], [401, undefined]);
  const { events }: RunStatus = await (await site.ask("/api/status", { token: ADMIN })).json();
  const logged = "only organizers may write text (ordered by the organizer)";
  assert.ok(events.some(({ text }) => text === logged));
  await post(site, "/api/public_text", { open: true });
  assert.equal(await models(), 200);
  await assertProblem(await post(site, "/api/public_text", { open: 1 }), 400, "usage");
  await assertProblem(await post(site, "/api/public_text", { open: false }, JOIN), 401, "bad-token");
  assert.equal(site.door.invites.text, true);
  await using without = await openSite();
  await assertProblem(await post(without, "/api/public_text", { open: true }), 409, "usage");
});

Deno.test("invitations: the join token makes none, and nonsense is named", async () => {
  await using site = await openSite();
  await assertProblem(await post(site, "/api/invitations", {}, JOIN), 401, "bad-token");
  await assertProblem(await site.ask("/api/invitations", { token: JOIN }), 401, "bad-token");
  const bad = [{ seats: 0 }, { seats: 1.5 }, { seats: 1e9 }, { hours: -1 }, { hours: "x" }, {
    note: "x".repeat(81),
  }];
  for (const body of bad) await assertProblem(await post(site, "/api/invitations", body), 400, "usage");
  await assertProblem(await post(site, "/api/public", { open: "yes" }), 400, "usage");
  assert.deepEqual((await list(site)).invitations, []);
});
