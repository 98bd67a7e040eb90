// Putting computers out over HTTP: for a time, without end, lifted, and kept over a restart; and who ordered what. The handshake
// that refuses them is the coordinator's own.
import assert from "node:assert/strict";
import { enter, hello } from "../../test/support/hand_socket.ts";
import { ADMIN, admit, assertProblem, JOIN, openSite, type Site } from "../../test/support/site.ts";
import type { BanStatus, OrganizerList } from "../../peer/wire/invitations.ts";
import type { RunStatus } from "../../peer/wire/status.ts";
import { Door } from "./door.ts";

const MARK = "0123456789abcdef";
const MINUTE_MS = 60_000;

function post(site: Site, path: string, body: unknown, token = ADMIN): Promise<Response> {
  return site.ask(path, { method: "POST", token, body: JSON.stringify(body) });
}

async function bans(site: Site): Promise<BanStatus[]> {
  return await (await site.ask("/api/bans", { token: ADMIN })).json();
}

/** As the sockets do it when it comes in. */
function come(site: Site, peer: string, mark?: string): void {
  admit(site, peer);
  site.door.seat(peer, null, mark);
}

async function eventsOf(site: Site): Promise<string[]> {
  const status: RunStatus = await (await site.ask("/api/status", { token: ADMIN })).json();
  return status.events.map(({ text }) => text);
}

Deno.test("bans: a computer is kept out for its time, with the reason, all of its tabs, and nobody else", async () => {
  await using site = await openSite();
  come(site, "a", MARK);
  come(site, "b", MARK);
  come(site, "c", "fedcba9876543210");
  const order = { peer: "a", reason: " wrong class ", minutes: 30 };
  assert.equal((await post(site, "/api/evict", order)).status, 200);
  assert.deepEqual(Object.keys(site.shell.core.state.peers), ["c"]);
  const [ban] = await bans(site);
  assert.deepEqual([ban?.peer, ban?.reason, ban?.by], ["a", "wrong class", "the organizer"]);
  assert.ok(ban?.until && Math.abs(ban.until - site.shell.now() - 30 * MINUTE_MS) < MINUTE_MS);
  assert.ok(!JSON.stringify(ban).includes(MARK), "a mark is nobody else's");
  const refusal =
    "this computer was put out by the organizer and is kept out for 30 minutes more: wrong class";
  assert.equal(site.door.refusal(MARK), refusal);
  assert.equal(site.door.refusal("fedcba9876543210"), null);
  assert.equal(site.door.refusal(undefined), null);
  const texts = await eventsOf(site);
  assert.ok(
    texts.includes("b put out: put out for 30 minutes by the organizer: wrong class"),
    texts.join("\n"),
  );
});

Deno.test("bans: the handshake refuses the computer, and lets others in with the same link", async () => {
  await using site = await openSite();
  const { socket, id } = enter(site, { mark: MARK });
  await post(site, "/api/evict", { peer: id, minutes: 10, reason: "too loud" });
  assert.deepEqual(socket.heard.at(-1), {
    ...{ type: "kicked", mayReturn: false },
    reason: "put out for 10 minutes by the organizer: too loud",
  });
  const refused = hello(site, { mark: MARK }).heard.at(-1);
  assert.deepEqual(refused, {
    ...{ type: "refused", code: "banned" },
    reason: "this computer was put out by the organizer and is kept out for 10 minutes more: too loud",
  });
  enter(site, { mark: "another-computer" });
  enter(site);
});

Deno.test("bans: one without end is lifted by hand, with a line in the log; lifting twice is named", async () => {
  await using site = await openSite();
  come(site, "a", MARK);
  await post(site, "/api/evict", { peer: "a", ban: true });
  assert.match(site.door.refusal(MARK) ?? "", /is kept out for good$/);
  const lift = () => site.ask("/api/bans/b1", { method: "DELETE", token: ADMIN });
  assert.deepEqual(await (await lift()).json(), []);
  assert.equal(site.door.refusal(MARK), null);
  assert.ok((await eventsOf(site)).includes("a may come in again (ordered by the organizer)"));
  await assertProblem(await lift(), 404, "usage");
});

Deno.test("bans: they end with their time, and outlive the coordinator", async () => {
  await using site = await openSite();
  const clock = { now: 1_000 };
  const { outDir } = site.shell.options;
  const open = () => new Door({ runDir: outDir, joinToken: JOIN, now: () => clock.now });
  const first = open();
  first.seat("a", null, MARK);
  first.ban("a", { reason: "", until: 1_000 + 3 * 60 * MINUTE_MS, by: "Ada" });
  first.ban("a", { reason: "", until: 1_000 + MINUTE_MS, by: "Ada" });
  const again = open();
  assert.match(again.refusal(MARK) ?? "", /put out by Ada and is kept out for 3 hours more$/);
  clock.now += 3 * 60 * MINUTE_MS;
  assert.equal(again.refusal(MARK), null);
  assert.deepEqual(again.bans.all, []);
  Deno.writeTextFileSync(`${outDir}/bans.json`, "[]");
  assert.throws(open, /bans.json cannot be read: .*repair it, or remove it/);
});

Deno.test("bans: who would not be known again is named, nonsense too, and then nobody goes", async () => {
  await using site = await openSite();
  come(site, "a");
  await assertProblem(await post(site, "/api/evict", { peer: "a", minutes: 5 }), 409, "usage");
  site.door.seat("a", null, MARK);
  for (const how of [{ minutes: 0 }, { minutes: -1 }, { minutes: "5" }, { minutes: 1e9 }, { ban: "yes" }]) {
    await assertProblem(await post(site, "/api/evict", { peer: "a", ...how }), 400, "usage");
  }
  assert.deepEqual(Object.keys(site.shell.core.state.peers), ["a"]);
  assert.deepEqual(await bans(site), []);
  await assertProblem(await site.ask("/api/bans", { token: JOIN }), 401, "bad-token");
  await assertProblem(await site.ask("/api/bans/b1", { method: "DELETE", token: JOIN }), 401, "bad-token");
});

Deno.test("organizers: a named link steers, the log says whose order it was, and it ends when it is withdrawn", async () => {
  await using site = await openSite();
  const named: OrganizerList = await (await post(site, "/api/organizers", { name: " Ada " })).json();
  assert.deepEqual([named.you, named.first, named.organizers[0]?.name], ["the organizer", true, "Ada"]);
  const link = new URL(named.organizers[0]!.link!);
  assert.equal(link.pathname, "/admin");
  const token = link.hash.slice(1);
  const seen: OrganizerList = await (await site.ask("/api/organizers", { token })).json();
  assert.deepEqual(seen, { you: "Ada", first: false, organizers: [{ id: "o1", name: "Ada" }] });
  admit(site, "a");
  admit(site, "b");
  await post(site, "/api/control", { action: "pause" }, token);
  await post(site, "/api/change", { step: 3, set: { grad_clip: 0.5 } }, token);
  await post(site, "/api/drain", { peer: "a" }, token);
  await post(site, "/api/public", { open: false }, token);
  await post(site, "/api/evict", { peer: "b" }, token);
  const texts = (await eventsOf(site)).join("\n");
  for (
    const line of [
      /^pause by Ada$/m,
      /grad_clip 1 -> 0.5 \(ordered by Ada\)$/m,
      /^a is to go, .* \(ordered by Ada\)$/m,
      /^the public link is closed: .* \(ordered by Ada\)$/m,
      /^b put out: put out by Ada$/m,
    ]
  ) assert.match(texts, line);
  await assertProblem(await post(site, "/api/organizers", { name: "Eve" }, token), 403, "bad-token");
  const withdraw = { method: "DELETE", token };
  await assertProblem(await site.ask("/api/organizers/o1", withdraw), 403, "bad-token");
  assert.equal((await site.ask("/api/organizers/o1", { ...withdraw, token: ADMIN })).status, 200);
  await assertProblem(await post(site, "/api/control", { action: "resume" }, token), 401, "bad-token");
});

Deno.test("organizers: a name is text that a log can carry, and nobody else's", async () => {
  await using site = await openSite();
  for (const name of ["", "  ", "x".repeat(41), "two\nlines", 7, null, { toString: 1 }]) {
    await assertProblem(await post(site, "/api/organizers", { name }), 400, "usage");
  }
  assert.equal((await post(site, "/api/organizers", { name: "Ada" })).status, 200);
  for (const name of ["ADA", "The Organizer", "\uff21da"]) {
    await assertProblem(await post(site, "/api/organizers", { name }), 409, "usage");
  }
  for (const path of ["/api/organizers"]) {
    await assertProblem(await site.ask(path, { token: JOIN }), 401, "bad-token");
    await assertProblem(await post(site, path, { name: "Eve" }, JOIN), 401, "bad-token");
  }
});

Deno.test("pins: a stage is a number from 1 to the layers or null; what is nonsense changes nothing", async () => {
  await using site = await openSite();
  for (const id of ["a", "b"]) admit(site, id);
  const { peers } = site.shell.core.state;
  for (const stage of [0, 3, 1.5, "1", undefined]) {
    await assertProblem(await post(site, "/api/pin", { peer: "a", stage }), 400, "usage");
  }
  await assertProblem(await post(site, "/api/pin", { peer: "z", stage: 1 }), 404, "usage");
  assert.equal(peers["a"]!.pin, undefined);
  const status: RunStatus = await (await post(site, "/api/pin", { peer: "a", stage: 2 })).json();
  assert.deepEqual([peers["a"]!.pin, status.peers[0]!.pin], [1, 1]);
  await post(site, "/api/pin", { peer: "a", stage: null });
  assert.equal(peers["a"]!.pin, undefined);
});

Deno.test("pins: a computer that comes again has its pin, another tab of it and other computers have none", async () => {
  await using site = await openSite();
  const { peers } = site.shell.core.state;
  const first = enter(site, { mark: MARK });
  await post(site, "/api/pin", { peer: first.id, stage: 2 });
  const beside = enter(site, { mark: MARK }), other = enter(site, { mark: "another-computer" });
  assert.deepEqual([peers[beside.id]!.pin, peers[other.id]!.pin], [undefined, undefined]);
  site.sockets.goodbye(first.id, "reloaded");
  const again = enter(site, { mark: MARK });
  assert.notEqual(again.id, first.id);
  const status: RunStatus = await (await site.ask("/api/status", { token: ADMIN })).json();
  assert.equal(status.peers.find(({ id }) => id === again.id)?.pin, 1);
  assert.ok((await eventsOf(site)).some((text) => /joined: .*pinned to stage 2 as before/.test(text)));
  await post(site, "/api/pin", { peer: again.id, stage: null });
  site.sockets.goodbye(again.id, "reloaded");
  assert.equal(peers[enter(site, { mark: MARK }).id]!.pin, undefined, "a pin that was taken away came back");
});
