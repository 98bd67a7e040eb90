// Snapshots in a simulation: each peer's real shell for them, over the world's clock, links and uploads. Not the protocol; what
// is kept and restored is the peer's own doing.
import type { Job, PeerEvent } from "../../peer/core/peer_state.ts";
import { decodeState, stateHash } from "../../peer/model/state_file.ts";
import { PeerSnapshots } from "../../peer/snapshots.ts";
import type { PeerMessage, StateFile, Welcome } from "../../peer/wire/control.ts";
import { decodeFrame } from "../../peer/wire/frame.ts";
import type { SnapshotOrder } from "../../peer/wire/snapshots.ts";
import type { RunEvent } from "../../coordinator/core/run_state.ts";
import type { Clock } from "./clock.ts";
import type { CoordinatorProcess } from "./coordinator.ts";
import type { Links } from "./links.ts";
import { COORDINATOR, type Network } from "./network.ts";
import type { Exported } from "./probe.ts";
import { wake } from "./sleep.ts";
import type { SimPeer, WorldOptions } from "./types.ts";

/** What a simulated peer lends an eighth of. */
const MEMORY_BYTES = 1e9;

export interface KeepingWorld {
  readonly clock: Clock;
  readonly network: Network;
  readonly links: Links;
  readonly process: CoordinatorProcess;
  readonly options: WorldOptions;
  readonly peers: ReadonlyMap<string, SimPeer>;
  say(id: string, message: PeerMessage): void;
  toCoordinator(event: RunEvent): void;
  feed(peer: SimPeer, event: PeerEvent): void;
}

type Place = Pick<Job & { job: "export" }, "cut" | "step" | "stage">;

export function keepingOf(world: KeepingWorld, id: string): PeerSnapshots {
  const { config, spec } = world.options;
  const rest = { incarnation: 1, ticket: id, heartbeatMs: 0, epoch: "", committed: 0, resumed: false };
  const corpus = { tokens: 0, bytesPerToken: 1 as const, hash: "" };
  const welcome: Welcome = { type: "welcome", peer: id, config, spec, corpus, ...rest };
  return new PeerSnapshots({
    ...{ welcome, memoryBytes: MEMORY_BYTES, states: null },
    host: {
      connect: (other) => world.links.connect(id, other),
      send: (to, bytes) => sendSnapshot(world, { from: id, to, bytes }),
    },
    say: (message) => world.say(id, message),
    upload: (place, file) => upload(world, world.peers.get(id)!, { ...place, ...file }),
    clock: {
      now: () => world.clock.now,
      after: (ms, task) => {
        let live = true;
        world.clock.after(ms, () => wake(world.peers.get(id), () => live ? task() : undefined));
        return () => live = false;
      },
    },
  });
}

/** The coordinator's word; what is to be exported the peer's core exports. */
export function orderSnapshots(world: KeepingWorld, peer: SimPeer, message: SnapshotOrder): void {
  peer.snapshots.order(message);
  if (message.type === "snapshot-out") world.feed(peer, { ...message, type: "snapshot" });
}

/** The view needs the link no more; a snapshot may. */
export function disconnect(world: KeepingWorld, peer: SimPeer, other: string): void {
  if (!peer.snapshots.desk.needs(other) && !peer.writer.needs(other)) world.links.disconnect(peer.id, other);
}

export interface SnapshotSent {
  from: string;
  to: string;
  /** The frame. */
  bytes: Uint8Array;
}

export function sendSnapshot(world: KeepingWorld, { from, to, bytes }: SnapshotSent): void {
  if (!world.links.carries(from, to)) return;
  world.network.send(from, to, "frames", () =>
    wake(world.peers.get(to), () => {
      const frame = decodeFrame(bytes);
      if (!frame.ok) throw new Error(`a snapshot's frame was refused: ${frame.reason}`);
      world.peers.get(to)!.snapshots.receive(from, frame.value.payload);
    }));
}

/** An export goes to keepers or to the coordinator, as it was asked for. */
export function handOver(
  world: KeepingWorld,
  peer: SimPeer,
  { job, file }: { job: Place; file: Exported },
): void {
  const plan = peer.core.state.view?.stages[job.stage];
  if (!peer.snapshots.take(job, { file, plan })) void upload(world, peer, { ...job, ...file });
}

/** As the coordinator's HTTP side takes it: whole, of that step, with the hash that was told. */
function upload(world: KeepingWorld, peer: SimPeer, state: Place & Exported): Promise<boolean> {
  const { cut, step, stage, bytes, hash } = state;
  const plan = peer.core.state.view?.stages[stage];
  const decoded = plan && decodeState(world.options.spec, plan, bytes);
  if (!plan || !decoded?.ok || decoded.value.step !== step || stateHash(decoded.value) !== hash) {
    return Promise.resolve(false);
  }
  const { firstLayer, endLayer, embed, head } = plan;
  const file: StateFile = { stage, firstLayer, endLayer, embed, head, bytes: bytes.length, hash };
  world.network.send(peer.id, COORDINATOR, "store", () => {
    world.process.putFile(step, file, bytes);
    world.toCoordinator({ type: "stored", cut, step, file });
  });
  return Promise.resolve(true);
}
