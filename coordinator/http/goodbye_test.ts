// A peer that says goodbye, on its socket or over HTTP as a closing page does: gone at once and once, with its reason, and
// nothing that it still sends counts. Whoever cannot prove who it is sends nobody away.
import assert from "node:assert/strict";
import { enter } from "../../test/support/hand_socket.ts";
import { assertProblem, JOIN, openSite, type Site } from "../../test/support/site.ts";

function departures(site: Site): string[] {
  return site.shell.core.state.events.filter((event) => event.kind === "gone").map((event) => event.text);
}

Deno.test("goodbye: on the socket, the peer is gone at once, with its reason, and only once", async () => {
  await using site = await openSite();
  const { socket, id } = enter(site);
  socket.say({ type: "goodbye", reason: "its page was closed" });
  assert.deepEqual(departures(site), [`${id} is gone: said goodbye: its page was closed`]);
  assert.deepEqual([socket.closed, site.shell.connections.size, site.sockets.tickets.size], [1, 0, 0]);
  socket.say({ type: "goodbye", reason: "again" });
  socket.say({ type: "ready", gen: 1 });
  socket.onclose?.();
  assert.equal(departures(site).length, 1);
  assert.equal(socket.heard.some((message) => message.type === "refused"), false);
});

Deno.test("goodbye: a page's beacon ends the peer of its ticket, and the late word on the socket changes nothing", async () => {
  await using site = await openSite();
  const [gone, stays] = [enter(site), enter(site)];
  const body = JSON.stringify({ peer: gone.id, ticket: gone.ticket });
  const response = await site.ask("/api/goodbye", { method: "POST", body });
  assert.equal(response.status, 204);
  assert.deepEqual(departures(site), [`${gone.id} is gone: said goodbye: its page was closed`]);
  assert.equal(gone.socket.closed, 1);
  gone.socket.say({ type: "signal", peer: stays.id, data: "1|{}" });
  assert.equal(stays.socket.heard.some((message) => message.type === "signal"), false);
  gone.socket.say({ type: "goodbye", reason: "its page was closed" });
  gone.socket.onclose?.();
  assert.equal(departures(site).length, 1);
  assert.deepEqual([...site.shell.connections.keys()], [stays.id]);
  // The beacon may also come after the socket's goodbye: the ticket is worth nothing any more.
  await assertProblem(await site.ask("/api/goodbye", { method: "POST", body }), 401, "bad-token");
});

Deno.test("goodbye: without the peer's own ticket nobody is sent away", async () => {
  await using site = await openSite();
  const { id, ticket } = enter(site);
  const other = enter(site);
  const bodies = [
    ...["", "{", "null", "[]", '{"peer":"constructor","ticket":"x"}', `{"peer":${JSON.stringify(id)}}`],
    JSON.stringify({ peer: id, ticket: other.ticket }),
    JSON.stringify({ peer: id, ticket: [ticket] }),
    JSON.stringify({ peer: id, ticket, fill: "x".repeat(5_000) }),
  ];
  for (const body of bodies) {
    await assertProblem(
      await site.ask("/api/goodbye", { method: "POST", body, token: JOIN }),
      401,
      "bad-token",
    );
  }
  assert.deepEqual([departures(site).length, site.shell.connections.size], [0, 2]);
});

Deno.test("goodbye: the coordinator's last word is not cut off, the peer closes the socket after it", async () => {
  const site = await openSite();
  const { socket } = enter(site);
  await site[Symbol.asyncDispose]();
  assert.equal(socket.heard.at(-1)!.type, "done");
  assert.deepEqual([socket.readyState, socket.closed], [WebSocket.CLOSED, 0]);
});
