// The peers' WebSockets: handshake, bounded decoding, signalling and relaying between peers. Turns bytes into the core's
// events; a bad message ends the connection with a coded reason and changes nothing else.
import type { Shell } from "../shell.ts";
import { randomToken } from "../store/access.ts";
import {
  type CoordinatorMessage,
  decodePeerMessage,
  type PeerMessage,
  PROTOCOL_VERSION,
  readTagged,
  tagControl,
  tagRelay,
} from "../../peer/wire/control.ts";

/** Heartbeats the peers are asked for. */
export const HEARTBEAT_MS = 500;
/** Connections at a time; each costs a socket and a row on the admin page. */
const PEERS_MAX = 200;
/** A relayed message carries one chunk of a link; anything longer is not ours. */
const SOCKET_BYTES_MAX = 1 << 20;
/** A client that cannot take its relayed bytes is cut before it fills the coordinator's memory. */
const SOCKET_BUFFER_BYTES_MAX = 64 << 20;
/** An open socket that says no hello holds a slot for nothing. */
const HELLO_MS = 10_000;

interface Session {
  id: string | null;
  socket: WebSocket;
}

export class Sockets {
  readonly #shell: Shell;
  readonly #joinToken: string;
  /** Tickets with which a peer proves over HTTP that it is the one on the socket. */
  readonly tickets = new Map<string, string>();
  #next = 1;

  constructor(shell: Shell, joinToken: string) {
    this.#shell = shell;
    this.#joinToken = joinToken;
  }

  accept(socket: WebSocket): void {
    const session: Session = { id: null, socket };
    socket.binaryType = "arraybuffer";
    const timer = setTimeout(() => session.id === null && socket.close(4000, "no hello"), HELLO_MS);
    socket.onmessage = (event: MessageEvent) => this.#receive(session, event.data);
    socket.onclose = () => {
      clearTimeout(timer);
      this.#closed(session);
    };
    socket.onerror = () => {};
  }

  #closed(session: Session): void {
    if (session.id === null) return;
    this.tickets.delete(session.id);
    if (this.#shell.connections.delete(session.id)) {
      this.#shell.feed({ type: "gone", peer: session.id, reason: "connection closed" });
    }
  }

  #receive(session: Session, data: unknown): void {
    if (!(data instanceof ArrayBuffer) || data.byteLength > SOCKET_BYTES_MAX) {
      return refuseSession(session, "bad-message", "expected binary messages of at most 1 MiB");
    }
    const tagged = readTagged(new Uint8Array(data));
    if (!tagged.ok) return refuseSession(session, tagged.code, tagged.reason);
    if (tagged.value.kind === "relay") return this.#relay(session, tagged.value.peer, tagged.value.bytes);
    const message = decodePeerMessage(tagged.value.bytes);
    if (!message.ok) return refuseSession(session, message.code, message.reason);
    if (session.id === null) this.#hello(session, message.value);
    else this.#hear(session.id, message.value);
  }

  #hear(id: string, message: PeerMessage): void {
    if (message.type === "signal") {
      const forwarded = { type: "signal" as const, peer: id, data: message.data };
      return this.#shell.connections.get(message.peer)?.send(packed(forwarded));
    }
    this.#shell.feed({ type: "message", peer: id, message });
  }

  #relay(session: Session, to: string, bytes: Uint8Array): void {
    if (session.id === null) return refuseSession(session, "bad-message", "relay before hello");
    this.#shell.connections.get(to)?.send(tagRelay(session.id, bytes) as Uint8Array<ArrayBuffer>);
  }

  #hello(session: Session, hello: PeerMessage): void {
    if (hello.type !== "hello") {
      return refuseSession(session, "bad-message", "the first message must be hello");
    }
    if (hello.version !== PROTOCOL_VERSION) {
      const reason =
        `this coordinator speaks version ${PROTOCOL_VERSION}, the peer ${hello.version}; reload or update`;
      return refuseSession(session, "wrong-version", reason);
    }
    if (hello.token !== this.#joinToken) {
      return refuseSession(session, "bad-token", "the join link is not of this run; ask for a fresh link");
    }
    if (this.#shell.connections.size >= PEERS_MAX) {
      return refuseSession(session, "run-full", `${PEERS_MAX} peers are connected; try again later`);
    }
    this.#welcome(session, hello);
  }

  #welcome(session: Session, hello: PeerMessage & { type: "hello" }): void {
    const id = `${hello.runtime}-${this.#next}`;
    const incarnation = this.#next++;
    const ticket = randomToken();
    session.id = id;
    this.tickets.set(id, ticket);
    const { socket } = session;
    const send = (bytes: Uint8Array<ArrayBuffer>) => {
      if (socket.readyState !== WebSocket.OPEN) return;
      if (socket.bufferedAmount > SOCKET_BUFFER_BYTES_MAX) socket.close(4001, "too slow");
      else socket.send(bytes);
    };
    this.#shell.connections.set(id, { send, close: (reason) => socket.close(1000, reason.slice(0, 100)) });
    const { config, spec, corpus } = this.#shell.options;
    const { bytesPerToken, hash } = corpus;
    const about = { tokens: corpus.tokens.length, bytesPerToken, hash };
    send(packed({
      ...{ type: "welcome", peer: id, incarnation, ticket, config, spec, corpus: about },
      heartbeatMs: HEARTBEAT_MS,
    }));
    const { runtime, adapter, engine, name } = hello;
    this.#shell.feed({ type: "join", peer: { id, runtime, adapter, engine, name: name ?? id } });
  }
}

function packed(message: CoordinatorMessage): Uint8Array<ArrayBuffer> {
  return tagControl(message) as Uint8Array<ArrayBuffer>;
}

function refuseSession(session: Session, code: string, reason: string): void {
  if (session.socket.readyState !== WebSocket.OPEN) return;
  session.socket.send(packed({ type: "refused", code, reason }));
  session.socket.close(4002, code);
}
