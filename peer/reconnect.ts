// The line to the coordinator: one socket after another, so that a peer can outlive a coordinator that restarts. It keeps what
// the peer has to say meanwhile, in order and bounded, and judges nothing. What must stay true: nothing but "hello" is said on
// a new socket before the coordinator has welcomed the peer back, and nothing at all after close().
import { toldHash } from "./held.ts";
import type { StageState } from "./exact/state.ts";
import { stageLayout } from "./model/layout.ts";
import { type Clock, systemClock } from "./net/clock.ts";
import { type Have, type PeerMessage, tagControl, tagRelay, type Welcome } from "./wire/control.ts";
import { assert } from "./wire/errors.ts";
import type { ModelSpec, StageSpec, View } from "./wire/run.ts";

/** The first socket opens within this time or the coordinator counts as offline. */
const CONNECT_MS = 15_000;
/** A later one, with the welcome on it: a half-open network must not use up all the time there is. */
const ATTEMPT_MS = 10_000;
/** First and longest pause between attempts, before jitter. */
const RETRY_FIRST_MS = 250;
const RETRY_MAX_MS = 4_000;
/** Pauses vary by this share up and down, so that peers do not all knock at once. */
const JITTER = 0.25;
/** After so long the run has gone on without this peer or not at all: it joins anew, with nothing to keep. */
export const RESUME_MS = 60_000;
/** A step needs a handful of messages; a peer with more to say than this is not waiting but lost. */
const SAID_MAX = 1_000;

/** The part of a WebSocket that is used; tests put their own in its place. */
export interface LineSocket
  extends Pick<WebSocket, "send" | "close" | "binaryType" | "onopen" | "onmessage" | "onclose" | "onerror"> {
  readonly readyState: number;
}

export interface LineOptions {
  /** ws(s) address of the coordinator's /api/peer. */
  url: string;
  /** Whether there is anything that a lost socket should not end. */
  mayResume(): boolean;
  /** First message on every socket; `again`: asks to go on as who it was. */
  hello(again: boolean): PeerMessage;
  onmessage(bytes: Uint8Array): void;
  /** Called once, unless close() comes first: there will be no further socket. */
  onlost(reason: string): void;
  /** `away` has changed. */
  onaway(): void;
  openSocket?: (url: string) => LineSocket;
  clock?: Clock;
  /** 0 <= x < 1. */
  random?: () => number;
}

export class CoordinatorLine {
  readonly #options: LineOptions;
  readonly #clock: Clock;
  #socket: LineSocket | null = null;
  #over = false;
  /** The coordinator answers and hears what is said. */
  #live = false;
  #said: PeerMessage[] = [];
  #attempts = 0;
  #stopAttempt: () => void = () => {};
  #stopWaiting: () => void = () => {};
  #returned: ((live: boolean) => void)[] = [];
  /** Set while the coordinator does not answer; `retryMs` is the pause before the next attempt, 0 during one. */
  away: { retryMs: number } | null = null;

  constructor(options: LineOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#open(CONNECT_MS);
  }

  /** Now if the coordinator listens; once it does again if it is away, except heartbeats, which would be stale. */
  say(message: PeerMessage): void {
    if (this.#live) return this.#socket?.send(plain(tagControl(message)));
    if (this.#over || this.away === null || message.type === "heartbeat") return;
    if (this.#said.length >= SAID_MAX) return this.#lose("there was more to say than can be kept");
    this.#said.push(message);
  }

  /** Bytes of a relayed link, which notices itself if they are lost. */
  relay(remote: string, bytes: Uint8Array): void {
    if (this.#live) this.#socket?.send(plain(tagRelay(remote, bytes)));
  }

  /** The coordinator has taken the peer back: what it had to say follows. */
  welcomedBack(): void {
    if (this.#over || this.away === null) return;
    this.#stopAttempt();
    this.#stopWaiting();
    this.#attempts = 0;
    this.away = null;
    this.#live = true;
    for (const message of this.#said.splice(0)) this.say(message);
    this.#settle(true);
    this.#options.onaway();
  }

  /** True once the coordinator is back, false if it never went away or never returns. */
  back(): Promise<boolean> {
    if (this.away === null || this.#over) return Promise.resolve(false);
    return new Promise((resolve) => this.#returned.push(resolve));
  }

  close(): void {
    this.#over = true;
    this.#live = false;
    this.away = null;
    this.#said = [];
    this.#stopAttempt();
    this.#stopWaiting();
    this.#leaveSocket();
    this.#settle(false);
  }

  #settle(live: boolean): void {
    for (const resolve of this.#returned.splice(0)) resolve(live);
  }

  #open(limitMs: number): void {
    const again = this.away !== null;
    const open = this.#options.openSocket ?? ((url: string) => new WebSocket(url));
    const socket = open(this.#options.url);
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    this.#stopAttempt = this.#clock.after(limitMs, () => this.#dropped("the coordinator does not answer"));
    let opened = false;
    let problem = "";
    socket.onopen = () => {
      opened = true;
      if (!again) {
        this.#stopAttempt();
        this.#live = true;
      }
      socket.send(plain(tagControl(this.#options.hello(again))));
    };
    socket.onmessage = (event: MessageEvent<ArrayBuffer>) =>
      this.#options.onmessage(new Uint8Array(event.data));
    socket.onerror = (event) => problem = problemOf(event);
    socket.onclose = () =>
      this.#dropped(
        opened ? "the connection to the coordinator closed" : unanswered(this.#options.url, problem),
      );
  }

  #leaveSocket(): void {
    const socket = this.#socket;
    this.#socket = null;
    if (socket === null) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.onerror = () => {};
    if (socket.readyState === WebSocket.OPEN || socket.readyState === WebSocket.CONNECTING) {
      socket.close(1000);
    }
  }

  #dropped(reason: string): void {
    if (this.#over) return;
    this.#live = false;
    this.#stopAttempt();
    this.#leaveSocket();
    if (!this.#options.mayResume()) return this.#lose(reason);
    if (this.away === null) {
      const late = `the coordinator did not come back within ${RESUME_MS / 1000} s`;
      this.#stopWaiting = this.#clock.after(RESUME_MS, () => this.#lose(late));
    }
    const pause = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** this.#attempts++);
    const random = this.#options.random ?? Math.random;
    const retryMs = pause * (1 - JITTER + 2 * JITTER * random());
    this.#setAway(retryMs);
    this.#stopAttempt = this.#clock.after(retryMs, () => {
      this.#setAway(0);
      this.#open(ATTEMPT_MS);
    });
  }

  #setAway(retryMs: number): void {
    this.away = { retryMs };
    this.#options.onaway();
  }

  #lose(reason: string): void {
    if (this.#over) return;
    this.close();
    this.#options.onlost(reason);
  }
}

/** Deno says what went wrong, browsers keep it to themselves. */
function problemOf(event: Event): string {
  const said = "message" in event && typeof event.message === "string" ? event.message : "";
  return said.split(": ").at(-1) ?? "";
}

function unanswered(url: string, problem: string): string {
  const where = `${new URL(url).host}${problem === "" ? "" : ` (${problem})`}`;
  return `nobody answers at ${where}; is the join link whole, and the coordinator up?`;
}

/** How far a peer has seen the run come, and in which of its histories. */
export interface Seen {
  epoch: string;
  committed: number;
}

/** Why a coordinator is not followed: it has forgotten steps that this peer has seen committed. Null if it has not. */
export function staleness(seen: Seen | null, welcome: Pick<Welcome, "epoch" | "committed">): string | null {
  if (seen === null || seen.epoch !== welcome.epoch || welcome.committed >= seen.committed) return null;
  return `the coordinator counts ${welcome.committed} committed steps, this peer has seen ${seen.committed}: ` +
    "it works with an older copy of its log; its organizer restores the newest one, or goes back on purpose with " +
    '"shoal resume" and a checkpoint\'s folder; then join again';
}

/** What a returning peer says it holds; states of a cut that is not the view's are left out. */
export function haveOf(
  view: View,
  spec: ModelSpec,
  held: { plans: StageSpec[]; states: StageState[]; logged?: number[] },
): Have {
  const stages = held.plans.flatMap((plan) => {
    const { tensors, size } = stageLayout(spec, plan);
    const state = held.states.find((it) =>
      it.layout.size === size && it.layout.tensors[0]?.name === tensors[0]?.name
    );
    return state === undefined ? [] : [{
      ...{ stage: plan.index, step: state.step, hash: toldHash(state) },
      logged: held.logged?.includes(plan.index) ?? false,
    }];
  });
  return { cut: view.cut, stages };
}

/** Our encoders always make plain ArrayBuffers; the types of some of them do not say so. */
function plain(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  assert(bytes.buffer instanceof ArrayBuffer, "bytes in a shared buffer");
  return bytes as Uint8Array<ArrayBuffer>;
}
