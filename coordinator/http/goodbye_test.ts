// A peer that says goodbye, on its socket or over HTTP as a closing page does: gone at once and once, with its reason, and
// nothing that it still sends counts. Whoever cannot prove who it is sends nobody away.
import assert from "node:assert/strict";
import {
  type CoordinatorMessage,
  type PeerMessage,
  readTagged,
  tagControl,
} from "../../peer/wire/control.ts";
import { decodeCoordinatorMessage, PROTOCOL_VERSION } from "../../peer/wire/control.ts";
import { assertProblem, JOIN, openSite, type Site } from "../../test/support/site.ts";

/** One end of a socket, in the test's hand: what the coordinator uses of a WebSocket. */
class HandSocket {
  readyState: number = WebSocket.OPEN;
  bufferedAmount = 0;
  binaryType = "";
  closed = 0;
  heard: CoordinatorMessage[] = [];
  onmessage: ((event: { data: ArrayBuffer }) => void) | null = null;
  onclose: (() => void) | null = null;
  onerror: (() => void) | null = null;

  say(message: PeerMessage): void {
    const bytes = tagControl(message);
    this.onmessage?.({ data: bytes.slice().buffer as ArrayBuffer });
  }

  send(bytes: Uint8Array): void {
    const tagged = readTagged(bytes);
    assert.ok(tagged.ok && tagged.value.kind === "control");
    const message = decodeCoordinatorMessage(tagged.value.bytes);
    assert.ok(message.ok);
    this.heard.push(message.value);
  }

  close(): void {
    this.closed++;
    this.readyState = WebSocket.CLOSED;
  }
}

interface Member {
  socket: HandSocket;
  id: string;
  ticket: string;
}

function enter(site: Site): Member {
  const socket = new HandSocket();
  site.sockets.accept(socket as unknown as WebSocket);
  const about = { runtime: "tab" as const, adapter: "none", engine: "none" };
  socket.say({ type: "hello", version: PROTOCOL_VERSION, token: JOIN, ...about });
  const welcome = socket.heard.find((message) => message.type === "welcome");
  assert.ok(welcome, "not let in");
  return { socket, id: welcome.peer, ticket: welcome.ticket };
}

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
