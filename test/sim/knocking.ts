// How peers outlive their coordinator in a simulation: the socket closes, the peer computes on and keeps what it has to say, it
// knocks until somebody answers, and is taken back as who it was or comes anew. The rules are peer/reconnect.ts's.
import { haveOf, staleness } from "../../peer/reconnect.ts";
import type { PeerEvent } from "../../peer/core/peer_state.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import type { Random } from "../support/random.ts";
import type { Clock } from "./clock.ts";
import type { CoordinatorProcess } from "./coordinator.ts";
import type { SimPeer } from "./types.ts";

/** A peer whose coordinator is away knocks again after about this long, and gives up in the end. */
export const KNOCK_MS = 400;
const RESUME_MS = 60_000;
export interface KnockingWorld {
  readonly clock: Clock;
  readonly random: Random;
  readonly process: CoordinatorProcess;
  readonly spec: ModelSpec;
  wake(id: string, run: () => void): void;
  say(id: string, message: PeerMessage): void;
  feed(peer: SimPeer, event: PeerEvent): void;
  /** It cannot go on as who it was. */
  rejoin(peer: SimPeer): void;
}

/** A peer has noticed that its coordinator is gone. */
export function loseSocket(world: KnockingWorld, peer: SimPeer): void {
  if (peer.away !== null) return;
  peer.away = [];
  waitAndKnock(world, peer, world.clock.now);
}

function waitAndKnock(world: KnockingWorld, peer: SimPeer, since: number): void {
  const pause = KNOCK_MS * (0.5 + world.random());
  world.clock.after(pause, () => world.wake(peer.id, () => knock(world, peer, since)));
}

function knock(world: KnockingWorld, peer: SimPeer, since: number): void {
  const { process, spec } = world;
  if (!process.up && world.clock.now - since < RESUME_MS) return waitAndKnock(world, peer, since);
  const seen = peer.seen!;
  if (!process.takesBack(peer.id, seen.epoch)) return world.rejoin(peer);
  const stale = staleness(seen, { epoch: process.epoch, committed: process.core.state.committed });
  if (stale !== null) throw new Error(`I1 ${stale}`);
  const { view, instances } = peer.core.state;
  const logged = instances.filter((it) => it.work?.step === it.step && it.work?.total === "logged");
  const held = {
    ...{ plans: instances.map((it) => it.plan), states: peer.holder.states() },
    logged: logged.map((it) => it.plan.index),
  };
  process.takeBack(peer.id, view === null ? null : haveOf(view, spec, held));
  const said = peer.away ?? [];
  peer.away = null;
  peer.writer.clear();
  for (const message of said) world.say(peer.id, message);
  world.feed(peer, { type: "resumed" });
}
