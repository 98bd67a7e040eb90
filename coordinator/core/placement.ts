// Who keeps which stage's snapshot: for each stage k + 1 peers that do not hold it, k data shards and a parity. Pure and
// deterministic, so a restarted coordinator places alike. What must stay true: losing a holder never takes a shard of its own
// stage with it, and any one keeper may go.

/** As many data shards as peer/exact/parity.ts allows. */
export const DATA_SHARDS_MAX = 4;
/** While a new snapshot arrives the complete one stays: two of a stage at a time. */
const COPIES = 2;
/** Shards end on whole blocks of so many bytes. */
const SHARD_ALIGNMENT = 16;

/** Without shards there is no snapshot: the newest checkpoint is what is left. */
export type Protection = "parity" | "copy" | "none";

export interface StageToKeep {
  firstLayer: number;
  endLayer: number;
  /** Peers that hold the stage: replicas, shadows and learners. */
  holders: readonly string[];
  /** Length of its state file. */
  stateBytes: number;
}

export interface KeeperOffer {
  peer: string;
  /** Memory that the peer lends to other stages' snapshots. */
  memoryBytes: number;
  /** How busy it is: 0 for a spare, 1 for the slowest peer of a step. Busier peers keep less. */
  load: number;
}

export interface Placement {
  firstLayer: number;
  endLayer: number;
  protection: Protection;
  /** Data shards; 0 without protection. With "copy" k is 1 and there is no parity. */
  k: number;
  /** Keeper of each slot: k + 1 with "parity", one with "copy". Which shard a slot gets is rotation()'s to say. */
  keepers: string[];
}

export interface PlacementRequest {
  stages: readonly StageToKeep[];
  peers: readonly KeeperOffer[];
  /** The placement in force: a keeper that may stay keeps its slot, so that only changed chunks must travel. */
  before?: readonly Placement[];
}

/** One placement per stage, in the order of the request. */
export function placeSnapshots({ stages, peers, before = [] }: PlacementRequest): Placement[] {
  const used = new Map(peers.map(({ peer }) => [peer, 0]));
  const placed = new Map<StageToKeep, Placement>();
  // Stages with the least choice first, then the large ones: they would find no room later.
  const order = stages.toSorted((a, b) =>
    choice(a, peers) - choice(b, peers) || b.stateBytes - a.stateBytes || a.firstLayer - b.firstLayer
  );
  for (const stage of order) {
    const former = before.find((it) => it.firstLayer === stage.firstLayer && it.endLayer === stage.endLayer);
    const placement = placeStage(stage, peers, { used, former });
    placed.set(stage, placement);
    const needed = shardNeed(stage, placement.k);
    for (const peer of placement.keepers) used.set(peer, used.get(peer)! + needed);
  }
  return stages.map((stage) => placed.get(stage)!);
}

function choice(stage: StageToKeep, peers: readonly KeeperOffer[]): number {
  return peers.filter(({ peer }) => !stage.holders.includes(peer)).length;
}

/** Memory that one keeper needs for a stage in k data shards. */
function shardNeed(stage: StageToKeep, k: number): number {
  return k === 0 ? 0 : COPIES * Math.ceil(stage.stateBytes / k / SHARD_ALIGNMENT) * SHARD_ALIGNMENT;
}

interface Room {
  used: ReadonlyMap<string, number>;
  former: Placement | undefined;
}

/** The largest k that finds k + 1 keepers with room; else one plain copy; else nothing. */
function placeStage(stage: StageToKeep, peers: readonly KeeperOffer[], room: Room): Placement {
  const { firstLayer, endLayer } = stage;
  for (let k = DATA_SHARDS_MAX; k >= 1; k--) {
    const fit = fitting(stage, k, { peers, room });
    if (fit.length <= k) continue;
    const keepers = inSlots(fit.slice(0, k + 1), room.former);
    return { firstLayer, endLayer, protection: "parity", k, keepers };
  }
  const [only] = fitting(stage, 1, { peers, room });
  if (only === undefined) return { firstLayer, endLayer, protection: "none", k: 0, keepers: [] };
  return { firstLayer, endLayer, protection: "copy", k: 1, keepers: [only] };
}

/** Peers with room for a shard, best first: who keeps it already, then who is least full and least busy, then by name. */
function fitting(
  stage: StageToKeep,
  k: number,
  { peers, room: { used, former } }: { peers: readonly KeeperOffer[]; room: Room },
): string[] {
  const needed = shardNeed(stage, k);
  const stays = (peer: string) => former?.keepers.includes(peer) ? 0 : 1;
  const fullness = ({ peer, memoryBytes, load }: KeeperOffer) =>
    (used.get(peer)! + needed) / memoryBytes + load;
  return peers
    .filter(({ peer, memoryBytes }) =>
      !stage.holders.includes(peer) && used.get(peer)! + needed <= memoryBytes
    )
    .toSorted((a, b) =>
      stays(a.peer) - stays(b.peer) || fullness(a) - fullness(b) || (a.peer < b.peer ? -1 : 1)
    )
    .map(({ peer }) => peer);
}

/** Those that stay keep their slots, the others fill the gaps. */
function inSlots(chosen: readonly string[], former: Placement | undefined): string[] {
  const slots = chosen.map((_, slot) => {
    const peer = former?.keepers[slot];
    return peer !== undefined && chosen.includes(peer) ? peer : null;
  });
  const rest = chosen.filter((peer) => !slots.includes(peer));
  return slots.map((peer) => peer ?? rest.shift()!);
}

/** Whether the snapshot can be restored with the keepers that are still there. */
export function restorable({ k, keepers, protection }: Placement, live: ReadonlySet<string>): boolean {
  return protection !== "none" && keepers.filter((peer) => live.has(peer)).length >= k;
}
