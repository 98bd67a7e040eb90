// What a session is told when it begins, what pages and status lines read of it, and how it ends. Types only.
import type { KeptBase } from "./base.ts";
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import type { Gate } from "./limits.ts";
import type { RelayingLinkHost } from "./net/host.ts";
import type { LinkStats } from "./net/link.ts";
import type { Seen } from "./reconnect.ts";
import type { SavedStates } from "./store/saved_states.ts";
import type { GroupStatus, Welcome } from "./wire/control.ts";

export type EndKind = "done" | "left" | "kicked" | "offline" | "refused" | "failed" | "device-lost";
export interface SessionEnd {
  kind: EndKind;
  code: string;
  reason: string;
}

export interface SessionOptions {
  /** http(s)://host:port of the coordinator. */
  origin: string;
  token: string;
  runtime: "tab" | "deno";
  name?: string;
  /** By it the coordinator knows this computer again; absent: it does not. */
  mark?: string;
  adapter: string;
  engine: string;
  memoryBytes: number;
  /** Frozen weights that outlive the session; absent: none do. */
  keptBase?: KeptBase;
  /** Which kernels the engine chose by measuring, in words; told at admission. */
  kernels?(): string;
  /** Where the states of newest snapshots outlive this peer; absent: nowhere. */
  states?: SavedStates;
  createEngine(build: StageBuild): Promise<StageEngine>;
  /** `ticket` proves who speaks for this peer over HTTP: a page that closes says so with it. */
  createHost(
    selfId: string,
    relay: (remote: string, bytes: Uint8Array<ArrayBuffer>) => void,
    ticket: string,
  ): RelayingLinkHost;
  /** What its owner allows; absent: everything. */
  gate?: Gate;
  /** What was got round without harm, for whoever reads logs. */
  onNote?(text: string): void;
  /** Something that a page shows has changed. */
  onChange(): void;
}

/** What a page or a status line reads of a session. */
export interface SessionFacts {
  step: "joining" | "measuring" | "joined";
  peer: string | null;
  welcome: Welcome | null;
  group: GroupStatus | null;
  hidden: boolean;
  paused: boolean;
  leaving: boolean;
  ownStepMs: number;
  /** It helps to write a text. */
  writes: boolean;
  links: Record<string, LinkStats>;
  /** Set while the coordinator does not answer and the session goes on without it. */
  away: { retryMs: number } | null;
  /** What the peer has seen committed; outlives the session. */
  seen: Seen | null;
}
