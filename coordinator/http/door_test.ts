// Who comes in with which token: the public link, seats of an invitation, its end, and what is kept over a restart.
import assert from "node:assert/strict";
import { join } from "node:path";
import { Door } from "./door.ts";

const JOIN = "the-public-token-of-this-run";

async function withDoor(
  test: (open: () => Door, clock: { now: number }, dir: string) => void,
): Promise<void> {
  const dir = await Deno.makeTempDir({ prefix: "shoal-door-" });
  const clock = { now: 1_000 };
  try {
    test(() => new Door({ runDir: dir, joinToken: JOIN, now: () => clock.now }), clock, dir);
  } finally {
    await Deno.remove(dir, { recursive: true });
  }
}

Deno.test("door: an invitation lets in as many computers at a time as it has seats", async () => {
  await withDoor((open) => {
    const door = open();
    const { id, token } = door.invites.add({ note: "row 3", seats: 2, expiresAt: 9_000 });
    for (const peer of ["a", "b"]) {
      assert.deepEqual(door.enter(token), { ok: true, invite: id });
      door.seat(peer, id);
    }
    const third = door.enter(token);
    assert.ok(!third.ok && /2 computers at a time/.test(third.reason));
    assert.ok(door.knows(token), "its pages still read what they are about to join");
    door.leave("a");
    assert.equal(door.enter(token).ok, true);
    assert.deepEqual(door.seated(id), ["b"]);
    assert.equal(door.inviteOf("b"), id);
    assert.equal(door.inviteOf("a"), null);
  });
});

Deno.test("door: an invitation ends with its time and when it is withdrawn; a wrong token never opens", async () => {
  await withDoor((open, clock) => {
    const door = open();
    const { id, token } = door.invites.add({ note: "", seats: 1, expiresAt: 2_000 });
    clock.now = 1_999;
    assert.equal(door.enter(token).ok, true);
    clock.now = 2_000;
    const late = door.enter(token);
    assert.ok(!late.ok && /has ended/.test(late.reason));
    assert.equal(door.knows(token), false);
    clock.now = 1_000;
    assert.equal(door.invites.remove(id), true);
    assert.equal(door.invites.remove(id), false);
    assert.equal(door.knows(token), false);
    for (const wrong of ["", "x", JOIN.slice(1), `${JOIN}x`]) assert.equal(door.knows(wrong), false, wrong);
  });
});

Deno.test("door: the public link opens and closes; invitations and that choice outlive the coordinator", async () => {
  await withDoor((open, _, dir) => {
    const first = open();
    assert.deepEqual(first.enter(JOIN), { ok: true, invite: null });
    const { token } = first.invites.add({ note: "", seats: 1, expiresAt: 5_000 });
    first.invites.setOpen(false);
    const again = open();
    const refused = again.enter(JOIN);
    assert.ok(!refused.ok && /invitation only/.test(refused.reason));
    assert.equal(again.enter(token).ok, true);
    assert.notEqual(again.invites.add({ note: "", seats: 1, expiresAt: 1 }).id, "i1", "an id is used once");
    assert.equal((Deno.statSync(join(dir, "invites.json")).mode ?? 0) & 0o077, 0);
  });
});

Deno.test("door: a file of invitations that cannot be read opens no door", async () => {
  await withDoor((open, _, dir) => {
    const path = join(dir, "invites.json");
    const bad = [
      "",
      "{",
      "[]",
      '{"open":true}',
      '{"open":true,"next":1,"invites":[{"id":"x"}]}',
      " ".repeat(2 << 20),
    ];
    for (const text of bad) {
      Deno.writeTextFileSync(path, text);
      assert.throws(open, /invites.json cannot be read: .*repair it, or remove it/, text.slice(0, 40));
    }
  });
});
