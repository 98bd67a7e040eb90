// The peers' WebSockets: handshake, bounded decoding, signalling and relaying between peers. Turns bytes into the core's
// events; a bad message ends the connection with a coded reason and changes nothing else.
import type { RestoredPeer } from "../core/run_record.ts";
import type { RunCoreState } from "../core/run_state.ts";
import type { Connection, Shell, ShellOptions } from "../shell.ts";
import type { Identity } from "../durable.ts";
import { randomToken } from "../store/access.ts";
import { TokenFile } from "../store/token_store.ts";
import { same } from "./answers.ts";
import type { Door, Entry } from "./door.ts";
import { messageOf } from "../../peer/wire/errors.ts";
import {
  type CoordinatorMessage,
  decodePeerMessage,
  type PeerMessage,
  PROTOCOL_VERSION,
  readTagged,
  tagControl,
  tagRelay,
} from "../../peer/wire/control.ts";

/** Heartbeats the peers are asked for: four in the second within which a frozen peer should be suspected. */
export const HEARTBEAT_MS = 250;
/** Connections at a time; each costs a socket and a row on the admin page. */
const PEERS_MAX = 200;
/** A relayed message carries one chunk of a link; anything longer is not ours. */
const SOCKET_BYTES_MAX = 1 << 20;
/** A client that cannot take its relayed bytes is cut before it fills the coordinator's memory. */
const SOCKET_BUFFER_BYTES_MAX = 64 << 20;
/** An open socket that says no hello holds a slot for nothing. */
const HELLO_MS = 10_000;
/**
 * A peer that is told that all is over closes the socket itself, and has so long for it. Closed from here while its bytes lie unread, a
 * connection is reset, and what was said last is lost with it: the peer would wait for a coordinator that has said goodbye.
 */
const PARTING_MS = 500;

type Hello = PeerMessage & { type: "hello" };

interface Session {
  id: string | null;
  socket: WebSocket;
  /** The invitation it came in with; null with the public link. */
  invite: string | null;
  /** Set with the id; a peer that returned on another socket has another one. */
  connection: Connection | null;
}

/** The part of the shell that sockets need. */
export interface SocketHub extends Pick<Shell, "connections" | "identities" | "feed" | "takeId"> {
  readonly options: Pick<ShellOptions, "spec" | "corpus" | "runLog">;
  readonly core: { readonly state: Pick<RunCoreState, "committed" | "config"> };
  readonly regathering: boolean;
  readonly epoch: string;
}

export class Sockets {
  readonly #shell: SocketHub;
  readonly #door: Door;
  /** Tickets with which a peer proves over HTTP that it is the one on the socket. */
  readonly tickets = new Map<string, string>();

  constructor(shell: SocketHub, door: Door) {
    this.#shell = shell;
    this.#door = door;
  }

  accept(socket: WebSocket): void {
    const session: Session = { id: null, socket, invite: null, connection: null };
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
    // A peer that came back on a second socket is not gone when the first one is noticed to be closed.
    const current = this.#shell.connections.get(session.id);
    if (current === undefined || current === session.connection) this.#gone(session.id, "connection closed");
  }

  /** A page that closes says goodbye twice, on its worker's socket and over HTTP: the first one counts. */
  goodbye(peer: string, reason: string): void {
    const connection = this.#shell.connections.get(peer);
    this.#gone(peer, reason === "" ? "said goodbye" : `said goodbye: ${reason}`);
    connection?.close("goodbye");
  }

  #gone(peer: string, reason: string): void {
    this.tickets.delete(peer);
    this.#door.leave(peer);
    this.#shell.identities.delete(peer);
    if (this.#shell.connections.delete(peer)) this.#shell.feed({ type: "gone", peer, reason });
  }

  #receive(session: Session, data: unknown): void {
    // It said goodbye, was put out, or came back on another socket: what still comes here is noise.
    if (session.id !== null && this.#shell.connections.get(session.id) !== session.connection) return;
    if (!(data instanceof ArrayBuffer) || data.byteLength > SOCKET_BYTES_MAX) {
      return refuseSession(session, "bad-message", "expected binary messages of at most 1 MiB");
    }
    const tagged = readTagged(new Uint8Array(data));
    if (!tagged.ok) return refuseSession(session, tagged.code, tagged.reason);
    if (tagged.value.kind === "relay") return this.#relay(session, tagged.value.peer, tagged.value.bytes);
    const message = decodePeerMessage(tagged.value.bytes);
    if (!message.ok) return refuseSession(session, message.code, message.reason);
    if (session.id === null) this.#hello(session, message.value);
    else if (message.value.type === "goodbye") this.goodbye(session.id, message.value.reason);
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
    if (!this.#door.knows(hello.token)) {
      return refuseSession(session, "bad-token", reasonOf(this.#door.enter(hello.token)));
    }
    const banned = this.#door.refusal(hello.mark);
    if (banned !== null) return refuseSession(session, "banned", banned);
    if (this.#shell.connections.size >= PEERS_MAX) {
      return refuseSession(session, "run-full", `${PEERS_MAX} peers are connected; try again later`);
    }
    if (hello.resume !== undefined) this.#door.leave(hello.resume.peer);
    const entry = this.#door.enter(hello.token);
    if (!entry.ok) return refuseSession(session, "run-full", entry.reason);
    session.invite = entry.invite;
    if (hello.resume === undefined) return this.#join(session, hello);
    const known = this.#memberOf(hello.resume);
    if (known !== null) return this.#return(session, hello, known);
    const reason = "the coordinator does not know this peer any more; it joins as a new one";
    refuseSession(session, "not-resumed", reason);
  }

  /** Only a coordinator that has restarted takes a peer back: to one that has not, it was gone with its socket. */
  #memberOf(resume: NonNullable<Hello["resume"]>): RestoredPeer | null {
    const { regathering, epoch, options } = this.#shell;
    if (!regathering || resume.epoch !== epoch) return null;
    const member = options.runLog?.run.peers.find((peer) => peer.id === resume.peer);
    return member !== undefined && same(member.ticket, resume.ticket) ? member : null;
  }

  #join(session: Session, hello: Hello): void {
    let incarnation: number;
    try {
      incarnation = this.#shell.takeId();
    } catch (error) {
      return refuseSession(session, "storage-full", messageOf(error));
    }
    const id = `${hello.runtime}-${incarnation}`;
    const pinned = this.#pinOf(id, hello, false);
    this.#welcome(session, id, { incarnation, ticket: randomToken(), resumed: false, mark: hello.mark });
    const { runtime, adapter, engine, name } = hello;
    this.#shell.feed({ type: "join", peer: { id, runtime, adapter, engine, name: name ?? id, ...pinned } });
  }

  /** A list that cannot be written keeps nobody out: the computer may then compute any stage. */
  #pinOf(id: string, { mark }: Hello, returns: boolean): { pin?: number } {
    try {
      const pin = this.#door.pinOf(id, mark, { returns });
      return pin === null ? {} : { pin };
    } catch (error) {
      this.#shell.feed({ type: "noted", text: `where ${id} was pinned is not known: ${messageOf(error)}` });
      return {};
    }
  }

  #return(session: Session, hello: Hello, member: RestoredPeer): void {
    const { ticket, incarnation, ...basics } = member;
    const peer = { ...basics, ...this.#pinOf(basics.id, hello, true) };
    this.#shell.connections.get(peer.id)?.close("it came back on another connection");
    this.#welcome(session, peer.id, { incarnation, ticket, resumed: true, mark: hello.mark });
    this.#shell.feed({ type: "return", peer, have: hello.have ?? null });
  }

  #welcome(
    session: Session,
    id: string,
    who: Identity & { resumed: boolean; mark?: string | undefined },
  ): void {
    const { incarnation, ticket, resumed, mark } = who;
    const connection = connectionOver(session.socket);
    Object.assign(session, { id, connection });
    this.#door.seat(id, session.invite, mark);
    this.tickets.set(id, ticket);
    this.#shell.identities.set(id, { incarnation, ticket });
    this.#shell.connections.set(id, connection);
    const { spec, corpus } = this.#shell.options;
    const { committed, config } = this.#shell.core.state;
    const { bytesPerToken, hash, tokens } = corpus;
    const { bytes, hash: proof } = tokens instanceof TokenFile ? tokens.pages : { bytes: 0, hash: "" };
    const pages = bytes === 0 ? {} : { pages: { bytes, hash: proof } };
    const about = { tokens: tokens.length, bytesPerToken, hash, ...pages };
    connection.send(packed({
      ...{ type: "welcome", peer: id, incarnation, ticket, config, spec, corpus: about },
      ...{ epoch: this.#shell.epoch, committed, resumed },
      heartbeatMs: HEARTBEAT_MS,
    }));
  }
}

function connectionOver(socket: WebSocket): Connection {
  return {
    send(bytes) {
      if (socket.readyState !== WebSocket.OPEN) return;
      if (socket.bufferedAmount > SOCKET_BUFFER_BYTES_MAX) socket.close(4001, "too slow");
      else socket.send(bytes);
    },
    close: (reason) => socket.close(1000, reason.slice(0, 100)),
    part(reason) {
      const timer = setTimeout(() => socket.close(1000, reason.slice(0, 100)), PARTING_MS);
      socket.addEventListener("close", () => clearTimeout(timer));
    },
  };
}

function reasonOf(entry: Entry): string {
  return entry.ok ? "" : entry.reason;
}

function packed(message: CoordinatorMessage): Uint8Array<ArrayBuffer> {
  return tagControl(message) as Uint8Array<ArrayBuffer>;
}

function refuseSession(session: Session, code: string, reason: string): void {
  if (session.socket.readyState !== WebSocket.OPEN) return;
  session.socket.send(packed({ type: "refused", code, reason }));
  session.socket.close(4002, code);
}
