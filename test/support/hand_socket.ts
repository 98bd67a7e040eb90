// A peer's socket in the test's hand, over a real coordinator's handshake: what was said stays to be looked at. For tests of
// coordinator/http; no network, and no peer behind it.
import assert from "node:assert/strict";
import {
  type CoordinatorMessage,
  decodeCoordinatorMessage,
  type PeerMessage,
  PROTOCOL_VERSION,
  readTagged,
  tagControl,
} from "../../peer/wire/control.ts";
import { JOIN, type Site } from "./site.ts";

/** One end of a socket, in the test's hand: what the coordinator uses of a WebSocket. */
export class HandSocket {
  readyState: number = WebSocket.OPEN;
  bufferedAmount = 0;
  binaryType = "";
  closed = 0;
  heard: CoordinatorMessage[] = [];
  onmessage: ((event: { data: ArrayBuffer }) => void) | null = null;
  onclose: (() => void) | null = null;
  onerror: (() => void) | null = null;
  readonly #atClose: (() => void)[] = [];

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
    // A peer that is told that all is over goes by itself.
    if (message.value.type === "done") {
      queueMicrotask(() => {
        this.readyState = WebSocket.CLOSED;
        this.#atClose.forEach((listener) => listener());
      });
    }
  }

  addEventListener(_: "close", listener: () => void): void {
    this.#atClose.push(listener);
  }

  close(): void {
    this.closed++;
    this.readyState = WebSocket.CLOSED;
  }
}

export interface Member {
  socket: HandSocket;
  id: string;
  ticket: string;
}

/** A socket that has said hello to the site's coordinator. */
export function hello(site: Site, more: Partial<PeerMessage & { type: "hello" }> = {}): HandSocket {
  const socket = new HandSocket();
  site.sockets.accept(socket as unknown as WebSocket);
  const about = { runtime: "tab" as const, adapter: "none", engine: "none" };
  socket.say({ type: "hello", version: PROTOCOL_VERSION, token: JOIN, ...about, ...more });
  return socket;
}

/** One that was let in. */
export function enter(site: Site, more: Partial<PeerMessage & { type: "hello" }> = {}): Member {
  const socket = hello(site, more);
  const welcome = socket.heard.find((message) => message.type === "welcome");
  assert.ok(welcome, "not let in");
  return { socket, id: welcome.peer, ticket: welcome.ticket };
}
