// Faults as data, and what each of them does to a world. A fault names its victims by fractions, not by ids, so that a plan can
// be drawn before anything has happened and printed in one line. Which faults a scenario has is scenarios.ts's business.
import type { RunEffect } from "../../coordinator/core/run_state.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { Random } from "../support/random.ts";
import { at, chance, Forgery } from "./forgery.ts";
import type { Invariants } from "./invariants.ts";
import { COORDINATOR, type Match, type Path } from "./network.ts";
import { coordinatorStates, isUnproved, peerStates } from "./probe.ts";
import { slowDown } from "./speeds.ts";
import type { Observer, Sent, SimPeer } from "./types.ts";
import type { World } from "./world.ts";

/** A link whose peer says nothing for so long is closed by its pings (peer/net/channel_link.ts). */
export const LINK_SILENCE_MS = 30_000;

/** Where the coordinator's process ends: at once, before a commit is logged, or before the n-th message that tells of it. */
export type CrashPoint = "now" | "commit-log" | "commit-send";

/** Waits for a peer, or the coordinator, to be in a state. */
type Armed = Fault & { state: string };

/** `at` in virtual ms; `who`, `other` and `stage` are fractions into the living peers and the view's stages; `share` of the pairs, chosen by `salt`. */
export type Fault =
  | { at: number; do: "crash"; who: number; lose: Path[] }
  | { at: number; do: "crash-stage"; stage: number; lose: Path[] }
  | { at: number; do: "mute"; who: number }
  | { at: number; do: "freeze"; who: number; forMs: number }
  | { at: number; do: "join" }
  | { at: number; do: "slow"; who: number; factor: number }
  | { at: number; do: "replan" }
  | { at: number; do: "leave"; who: number }
  | { at: number; do: "pause"; who: number; forMs: number }
  | { at: number; do: "hold"; forMs: number }
  | { at: number; do: "cut"; who: number; other: number; lateMs: number }
  | { at: number; do: "clog"; path: Path | "all"; share: number; salt: number; forMs: number }
  | { at: number; do: "swizzle"; share: number; salt: number; forMs: number }
  | { at: number; do: "spike"; share: number; salt: number; extraMs: number; forMs: number }
  | { at: number; do: "partition"; share: number; salt: number; way: "both" | "in" | "out"; forMs: number }
  | { at: number; do: "replay"; frames: number; salt: number; forge: boolean }
  | {
    at: number;
    do: "coordinator";
    point: CrashPoint;
    nth: number;
    downMs: number;
    tear: boolean;
    lose: boolean;
  }
  | { at: number; do: "disk-full"; forMs: number }
  | { at: number; do: "clock"; byMs: number; forMs: number }
  | { at: number; do: "timers"; scale: number; forMs: number }
  | { at: number; do: "crook"; gen: number; micro: number }
  | { at: number; do: "corrupt"; fetches: number }
  | { at: number; do: "wrong-totals"; count: number }
  | { at: number; do: "crash-in"; state: string; nth: number; lose: Path[] }
  | { at: number; do: "deaf-in"; state: string; forMs: number }
  /** A bit changes in its memory, in the states that it does not compute with; what it says comes late. */
  | { at: number; do: "rot-in"; state: string; forMs: number }
  /** It hears the others' sums late, and one of them with a wrong bit, and of the commit later still. */
  | { at: number; do: "mislead-in"; state: string; forMs: number }
  | { at: number; do: "coordinator-in"; state: string; nth: number; downMs: number; lose: boolean };

export const ALL_PATHS: Path[] = ["control", "store", "frames"];

/** Remembers what was sent, and carries faults out. */
export class Nemesis implements Observer {
  /** How often a fault hit something, by its name. */
  readonly hits: Record<string, number> = {};
  readonly #world: World;
  readonly #forgery: Forgery;
  readonly #armed: Armed[] = [];
  readonly #invariants: Invariants;
  #resting = false;

  constructor(world: World, invariants: Invariants, faults: readonly Fault[]) {
    this.#world = world;
    this.#invariants = invariants;
    this.#forgery = new Forgery(world, invariants);
    for (const fault of faults) {
      if (isArmed(fault)) this.#armed.push({ ...fault });
      else world.at(fault.at, () => this.#resting || this.#carryOut(fault));
    }
  }

  /** The run is over: a fault of its plan that has not come yet would only keep its peers from catching up. */
  rest(): void {
    this.#resting = true;
    this.#armed.length = 0;
  }

  sent(frame: Sent): void {
    this.#forgery.remember(frame);
  }

  said(peer: string, message: PeerMessage): void {
    this.#forgery.rememberMessage(peer, message);
  }

  /** A peer's state is known only after its step, so this is where it can be crashed in exactly that state. */
  peer(peer: SimPeer): void {
    if (this.#armed.length === 0) return;
    for (const fault of [...this.#armed]) {
      if (fault.do === "coordinator-in" || peer.dead || this.#world.clock.now < fault.at) continue;
      if (!peerStates(peer).includes(fault.state)) continue;
      if (fault.do === "crash-in" && --fault.nth > 0) continue;
      if (fault.do === "rot-in" && !isUnproved(this.#world.coordinator.state, peer)) continue;
      this.#disarm(fault);
      this.#strike(peer, fault);
    }
  }

  #strike(peer: SimPeer, fault: Armed): void {
    const world = this.#world;
    const hearsNothing = (path: Path, ms: number) =>
      world.network.clog((pair) => pair.to === peer.id && pair.path === path, ms);
    switch (fault.do) {
      case "crash-in":
        return world.crash(peer.id, fault.lose);
      case "deaf-in":
        return void hearsNothing("frames", fault.forMs);
      case "rot-in":
        world.network.clog(({ from, path }) => from === peer.id && path === "control", fault.forMs);
        return this.#invariants.rot(peer);
      case "mislead-in":
        hearsNothing("frames", fault.forMs / 2);
        hearsNothing("control", fault.forMs);
        world.misled = peer.id;
    }
  }

  coordinator(_: RunEffect): void {
    if (this.#armed.length === 0) return;
    const states = coordinatorStates(this.#world.coordinator.state);
    for (const fault of this.#armed) {
      if (fault.do !== "coordinator-in" || !states.includes(fault.state) || --fault.nth > 0) continue;
      this.#disarm(fault);
      const { downMs, lose } = fault;
      this.#world.crashCoordinator({ before: () => true, downMs, tear: false, lose });
    }
  }

  #disarm(fault: Armed): void {
    this.#armed.splice(this.#armed.findIndex((it) => it === fault), 1);
    this.#hit(`${fault.do} ${fault.state}`);
  }

  #hit(what: string): void {
    this.hits[what] = (this.hits[what] ?? 0) + 1;
  }

  #carryOut(fault: Fault): void {
    const world = this.#world;
    if (this.#ofPeer(fault)) return this.#hit(fault.do);
    this.#hit(fault.do);
    switch (fault.do) {
      case "join":
        return void world.join();
      case "replan":
        return world.process.take({ type: "admin", action: "replan" });
      case "hold":
        world.press("pause");
        return world.at(world.clock.now + fault.forMs, () => world.press("resume"));
      case "replay":
        for (let i = 0; i < fault.frames; i++) {
          for (const done of this.#forgery.attempt(fault.salt, i, fault.forge)) this.#hit(done);
        }
        return;
      case "crash-stage":
        return this.#crashStage(fault);
      case "crook":
        return this.#crook(fault);
      case "wrong-totals":
        world.wrongTotals += fault.count;
        return;
      case "corrupt":
        world.process.corruptFetches += fault.fetches;
        return;
      case "coordinator":
        return this.#crashCoordinator(fault);
      case "disk-full":
        world.process.disk.full = true;
        return world.at(world.clock.now + fault.forMs, () => world.process.disk.full = false);
      case "clock":
        world.process.clockOffMs = fault.byMs;
        return world.at(world.clock.now + fault.forMs, () => world.process.clockOffMs = 0);
      case "timers":
        world.timerScale = fault.scale;
        return world.at(world.clock.now + fault.forMs, () => world.timerScale = 1);
      default:
        return this.#ofNetwork(fault);
    }
  }

  /** True for a fault that is done to one peer, or to a link of it; without a living peer it hits nobody. */
  #ofPeer(fault: Fault): boolean {
    const world = this.#world;
    if (!("who" in fault)) return false;
    const { id } = at(world.alive(), fault.who) ?? { id: undefined };
    if (id === undefined) return true;
    if (fault.do === "crash") world.crash(id, fault.lose);
    else if (fault.do === "mute") world.mute(id);
    else if (fault.do === "slow") slowDown(world, id, fault.factor);
    else if (fault.do === "freeze") world.freeze(id, fault.forMs);
    else if (fault.do === "leave") world.wish(id, { type: "leave", reason: "asked" });
    else if (fault.do === "cut") {
      const [a, b] = at(world.links.pairs(), fault.other) ?? [id, id];
      world.cut(a, b, fault.lateMs);
    } else {
      world.wish(id, { type: "pause", paused: true });
      world.at(world.clock.now + fault.forMs, () => world.wish(id, { type: "pause", paused: false }));
    }
    return true;
  }

  #ofNetwork(fault: Fault): void {
    const { network } = this.#world;
    if (fault.do === "clog") {
      const { path, share, salt, forMs } = fault;
      const match: Match = (pair) =>
        (path === "all" || pair.path === path) && chance(salt, `${pair.from}>${pair.to}`) < share;
      this.#clog(match, forMs);
    } else if (fault.do === "swizzle") this.#swizzle(fault);
    else if (fault.do === "spike") {
      const { share, salt, extraMs, forMs } = fault;
      network.spike((pair) => chance(salt, `${pair.from}>${pair.to}`) < share, extraMs, forMs);
    } else if (fault.do === "partition") {
      const { share, salt, way, forMs } = fault;
      const apart = (id: string) => id !== COORDINATOR && chance(salt, id) < share;
      this.#clog(({ from, to }) => {
        if (apart(from) === apart(to)) return false;
        return way === "both" || (way === "out" ? apart(from) : apart(to));
      }, forMs);
    }
  }

  /** What nobody opens within the pings' limit is a broken link, at both ends. */
  #clog(match: Match, forMs: number): void {
    const world = this.#world;
    world.network.clog(match, forMs);
    if (forMs < LINK_SILENCE_MS) return;
    world.at(world.clock.now + LINK_SILENCE_MS, () => {
      for (const [a, b] of world.links.pairs()) {
        const ways = [{ from: a, to: b, path: "frames" as const }, {
          from: b,
          to: a,
          path: "frames" as const,
        }];
        if (ways.some(match)) world.cut(a, b);
      }
    });
  }

  /** Random pairs are clogged one by one and released in another order. */
  #swizzle({ share, salt, forMs }: Fault & { do: "swizzle" }): void {
    const world = this.#world;
    const parts = 6;
    for (let part = 0; part < parts; part++) {
      const match: Match = ({ from, to, path }) => {
        const drawn = chance(salt, `${from}>${to}/${path}`);
        return drawn < share && Math.floor(chance(salt + 1, `${from}>${to}/${path}`) * parts) === part;
      };
      const begin = chance(salt + 2, String(part)) * forMs / 2;
      world.at(
        world.clock.now + begin,
        () => world.network.clog(match, forMs * chance(salt + 3, String(part))),
      );
    }
  }

  /** All holders of a stage at once, learners too. */
  #crashStage({ stage, lose }: Fault & { do: "crash-stage" }): void {
    const world = this.#world;
    const hit = at(world.coordinator.state.view?.stages ?? [], stage);
    for (const { peer } of hit?.replicas ?? []) world.crash(peer, lose);
  }

  /** One generation's plan gives a micro-batch to two replicas: peers must refuse to sum such a step. */
  #crook({ gen, micro }: Fault & { do: "crook" }): void {
    this.#world.tamper = (message) => {
      if (message.type !== "view" || message.view.gen !== gen) return message;
      const view = structuredClone(message.view);
      for (const { replicas } of view.stages) {
        const other = replicas.find((it) => it.microBatches.length > 0 && !it.microBatches.includes(micro));
        other?.microBatches.push(micro);
        other?.microBatches.sort((a, b) => a - b);
      }
      return { ...message, view };
    };
  }

  #crashCoordinator({ point, nth, downMs, tear, lose }: Fault & { do: "coordinator" }): void {
    if (point === "now") return this.#world.crashCoordinator({ downMs, tear, lose });
    let left = nth;
    const before = (effect: RunEffect) => {
      const reached = point === "commit-log"
        ? effect.do === "log" && effect.kind === "commit"
        : effect.do === "send" && effect.message.type === "commit";
      return reached && --left <= 0;
    };
    this.#world.crashCoordinator({ before, downMs, tear, lose });
  }
}

function isArmed(fault: Fault): fault is Armed {
  return "state" in fault;
}

/** Faults in the order in which they come. */
export function inOrder(faults: Fault[]): Fault[] {
  return faults.toSorted((a, b) => a.at - b.at);
}

export function between(random: Random, least: number, most: number): number {
  return Math.round(least + random() * (most - least));
}

/** Chooses by hashing, so that a fault hits the same pairs and peers whenever it is asked. */
export function salt(random: Random): number {
  return Math.floor(random() * 1e9);
}
