// What changes between two plans, for a preview before anything is applied: who fetches which layers from whom, how many bytes
// that is, how long it takes, what a step gains. Pure. It moves nothing.
import { baseSpec, stageLayout } from "../../peer/model/layout.ts";
import type { ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import { megabytes, plural } from "./planner_feasible.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";

/** A holder keeps the weights and AdamW's two moments, f32 each; that is what a new holder must transfer. */
export const STATE_BYTES_PER_PARAM = 12;

/** Layers that a peer begins to hold, and where they come from. */
export interface Transfer {
  peer: string;
  /** A holder of them now; null if nobody who stays has them, and only a snapshot does. */
  from: string | null;
  firstLayer: number;
  endLayer: number;
  bytes: number;
  /** On the link between the two, shared with whatever else that holder sends at the same time. */
  seconds: number;
}

export interface PlanDiff {
  transfers: Transfer[];
  /** Stages, by number in the new plan, whose replicas or micro-batches changed. */
  stages: number[];
  /** Sum of all transfers, and the time until the last has arrived; at least what a new cut costs. */
  bytes: number;
  seconds: number;
  /** With adapters: bytes of the frozen model that whoever begins to hold its layers fetches from elsewhere, as f32; part of `bytes`. */
  base: number;
  /** Predicted seconds of a step. */
  before: number;
  after: number;
  /** Steps after which the change has paid for its transfers; null if it never does. */
  paysAfter: number | null;
  /** The same in words. */
  sentences: string[];
}

type Ranges = { firstLayer: number; endLayer: number }[];

/** Who holds which layers under a plan, shadows included. */
export function heldBy(plan: Pick<Plan, "stages">): Map<string, Ranges> {
  const held = new Map<string, Ranges>();
  for (const { replicas, shadows, firstLayer, endLayer } of plan.stages) {
    for (const peer of [...replicas.map((replica) => replica.peer), ...shadows]) {
      held.set(peer, [...held.get(peer) ?? [], { firstLayer, endLayer }]);
    }
  }
  return held;
}

/**
 * From one plan to the next.
 * @param before what a step takes now, in seconds: the former plan's prediction, or what was measured since
 */
export function diffPlans(
  former: Plan,
  next: Plan,
  context: { request: PlanRequest; before?: number },
): PlanDiff {
  const { request, before = former.seconds } = context;
  const transfers = withSeconds(request, transfersOf(former, next, request));
  const stop = sameCut(former, next) ? 0 : request.cutSeconds?.(next) ?? 0;
  const seconds = Math.max(stop, ...transfers.map((transfer) => transfer.seconds));
  const gain = before - next.seconds;
  const base = transfers.reduce((sum, range) => sum + baseBytes(request.spec, range), 0);
  const diff = {
    ...{ transfers, seconds, before, after: next.seconds, stages: changedStages(former, next) },
    ...{ base, bytes: transfers.reduce((sum, { bytes }) => sum + bytes, base) },
    paysAfter: gain > 0 ? Math.ceil(seconds / gain) : null,
  };
  return { ...diff, sentences: sentencesOf(request, diff) };
}

/** Whether the layers stay cut as they are, whoever holds them. */
export function sameCut(a: Pick<Plan, "stages">, b: Pick<Plan, "stages">): boolean {
  const ends = ({ stages }: Pick<Plan, "stages">) => stages.map(({ endLayer }) => endLayer).join();
  return ends(a) === ends(b);
}

function transfersOf(former: Plan, next: Plan, { spec, peers, link }: PlanRequest): Transfer[] {
  const held = heldBy(former);
  const present = new Set(peers.map((peer) => peer.id));
  const transfers: Transfer[] = [];
  for (const [peer, ranges] of heldBy(next)) {
    const has = held.get(peer) ?? [];
    for (const range of ranges.flatMap((wanted) => missing(wanted, has))) {
      // One fetch per stage that had these layers: each has its own holders.
      for (const source of former.stages) {
        const firstLayer = Math.max(range.firstLayer, source.firstLayer);
        const endLayer = Math.min(range.endLayer, source.endLayer);
        if (firstLayer >= endLayer) continue;
        const holders = [...source.replicas.map((replica) => replica.peer), ...source.shadows]
          .filter((holder) => holder !== peer && present.has(holder));
        const rate = (holder: string) => link(holder, peer)?.bytesPerS ?? 0;
        const from = holders.toSorted((a, b) => rate(b) - rate(a))[0] ?? null;
        transfers.push({
          peer,
          from,
          firstLayer,
          endLayer,
          bytes: stateBytes(spec, { firstLayer, endLayer }),
          seconds: 0,
        });
      }
    }
  }
  return transfers;
}

/** Parts of a range that none of the others covers. */
function missing(wanted: Ranges[number], has: Ranges): Ranges {
  let open: Ranges = [wanted];
  for (const { firstLayer, endLayer } of has) {
    open = open.flatMap((part) =>
      [
        { firstLayer: part.firstLayer, endLayer: Math.min(part.endLayer, firstLayer) },
        { firstLayer: Math.max(part.firstLayer, endLayer), endLayer: part.endLayer },
      ].filter((rest) => rest.firstLayer < rest.endLayer)
    );
  }
  return open;
}

/** Weights and moments of a run of layers, with the embedding and the head at the model's ends. */
export function stateBytes(spec: ModelSpec, range: { firstLayer: number; endLayer: number }): number {
  const ends = { embed: range.firstLayer === 0, head: range.endLayer === spec.n_layer };
  const stage: StageSpec = { index: 0, ...range, ...ends };
  return stageLayout(spec, stage).size * STATE_BYTES_PER_PARAM;
}

/** The frozen weights of a run of layers, which no peer sends: their time depends on a link that nobody has measured. */
function baseBytes(spec: ModelSpec, range: { firstLayer: number; endLayer: number }): number {
  if (spec.lora === undefined) return 0;
  return stateBytes(baseSpec(spec), range) / STATE_BYTES_PER_PARAM * Float32Array.BYTES_PER_ELEMENT;
}

/** Each holder sends one fetch after the other, in order; those of different holders run side by side. */
function withSeconds({ link }: PlanRequest, transfers: Transfer[]): Transfer[] {
  const busy = new Map<string, number>();
  return transfers.map((transfer) => {
    if (transfer.from === null) return transfer;
    const way = link(transfer.from, transfer.peer);
    const start = busy.get(transfer.from) ?? 0;
    const seconds = way === null ? Infinity : start + way.latency + transfer.bytes / way.bytesPerS;
    busy.set(transfer.from, seconds);
    return { ...transfer, seconds };
  });
}

function changedStages(former: Plan, next: Plan): number[] {
  const key = ({ firstLayer, endLayer, replicas }: Plan["stages"][number]) =>
    JSON.stringify([firstLayer, endLayer, replicas.map(({ peer, microBatches }) => [peer, microBatches])]);
  const known = new Set(former.stages.map(key));
  return next.stages.filter((stage) => !known.has(key(stage))).map((stage) => stage.index);
}

function sentencesOf(request: PlanRequest, diff: Omit<PlanDiff, "sentences">): string[] {
  const nameOf = (id: string) => request.peers.find((peer) => peer.id === id)?.name ?? id;
  const transfers = diff.transfers.map(({ peer, from, firstLayer, endLayer, bytes, seconds }) => {
    const layers = endLayer - firstLayer === 1
      ? `layer ${firstLayer}`
      : `layers ${firstLayer} to ${endLayer - 1}`;
    const source = from === null
      ? "a snapshot, since nobody who stays holds them"
      : `${nameOf(from)}, about ${seconds.toPrecision(2)} s`;
    return `${nameOf(peer)} fetches ${layers} (${megabytes(bytes)}) from ${source}.`;
  });
  const base = diff.base === 0 ? [] : [
    `The frozen weights of these layers (${
      megabytes(diff.base)
    }) come from the coordinator, beside that time.`,
  ];
  const steps = `${diff.before.toPrecision(3)} s before, ${diff.after.toPrecision(3)} s after`;
  const pays = diff.paysAfter === null
    ? "It does not pay for itself."
    : diff.paysAfter === 0
    ? "It costs no transfer."
    : `It has paid for itself after ${plural(diff.paysAfter, "step")}.`;
  return [...transfers, ...base, `A step is expected to take ${steps}. ${pays}`];
}
