// Whether stages fit the memory that peers offer: bytes of a holder, room of a peer, and how a stage is run so that its holders
// have room: with all its slots, with fewer, or with activations that are computed again. Pure; it places nobody.
import { engineKind, holderBytes, type StageRun } from "../../peer/model/stage_memory.ts";
import type { ModelSpec, RecomputeId, RunConfig, StagePlan, StageSpec } from "../../peer/wire/run.ts";
import { SNAPSHOT_MEMORY_SHARE } from "../../peer/wire/snapshots.ts";
import { holds, layersText } from "../../peer/wire/view.ts";
import { withFinestCodecs } from "../plan/planner_codecs.ts";
import { bytesBySlots } from "../plan/planner_shares.ts";
import type { PeerRecord } from "./run_state.ts";

/** From the least work done again to the least memory. */
const LEVELS: readonly RecomputeId[] = ["none", "attention", "block"];

export interface Fit {
  /** What the peer needs to hold the stage, as a shadow too. */
  bytes(stage: StageSpec, run: StageRun, peer: PeerRecord): number;
  /** The levels of recomputation that the configuration leaves open, least work first. */
  levels: readonly RecomputeId[];
}

/** Numbers of slots that are asked for anyway, to see that each takes as much as the last. */
const SLOTS_SAMPLED = 3;

/** Sizes are worked out once for each shape of stage: a search over cuts asks for the same ones again and again. */
export function createFit(spec: ModelSpec, config: RunConfig): Fit {
  const known = new Map<string, (slots: number) => number>();
  const finest = withFinestCodecs(config);
  const most = Math.max(SLOTS_SAMPLED, config.gradient_accumulation_steps);
  return {
    levels: config.recompute === "auto" ? LEVELS : [config.recompute],
    bytes(stage, run, peer) {
      const kind = engineKind(peer.engine);
      const { firstLayer, endLayer, embed, head } = stage;
      const key = `${endLayer - firstLayer},${embed},${head},${run.recompute},${run.optimizer},${kind}`;
      let bySlots = known.get(key);
      if (bySlots === undefined) {
        const memory = (slots: number) =>
          holderBytes(stage, { ...run, slots }, { spec, config: finest, kind });
        known.set(key, bySlots = bytesBySlots(memory, most));
      }
      return bySlots(run.slots);
    },
  };
}

/** Bytes of a peer that stages may take; the rest is for the snapshots that it keeps for others. */
export function roomOf(peer: PeerRecord): number {
  return Math.floor(peer.memoryBytes * (1 - SNAPSHOT_MEMORY_SHARE));
}

/** How a planned stage is run. An engine keeps the room for an optimizer that a further holder has ended. */
export function runOf({ inflight, recompute = "none", optimizer }: StagePlan): StageRun {
  return { slots: inflight, recompute, ...(optimizer === undefined ? {} : { optimizer: "gpu" }) };
}

/** Bytes that a peer has left beside the stages that it holds in these. */
export function roomBeside(fit: Fit, stages: readonly StagePlan[], peer: PeerRecord): number {
  const held = stages.filter((stage) => holds(stage, peer.id));
  return held.reduce((room, stage) => room - fit.bytes(stage, runOf(stage), peer), roomOf(peer));
}

/** Whether the peer could hold this stage of `stages` too, beside who holds it now. */
export function hasRoom(
  fit: Fit,
  stages: readonly StagePlan[],
  of: { stage: StagePlan; peer: PeerRecord },
): boolean {
  const run: StageRun = { ...runOf(of.stage), optimizer: "exact" };
  return fit.bytes(of.stage, run, of.peer) <= roomBeside(fit, stages, of.peer);
}

/** A stage, and the peers that are to hold it with the room that each has for it. */
export interface StageDemand {
  stage: StageSpec;
  holders: readonly { peer: PeerRecord; room: number }[];
  /** Slots that the schedule wants, and the fewest with which the stage does not hold the pipeline up. */
  slots: number;
  slotsLeast: number;
}

export function fits(fit: Fit, { stage, holders }: StageDemand, run: StageRun): boolean {
  return holders.every(({ peer, room }) => fit.bytes(stage, run, peer) <= room);
}

/**
 * How the stage is run so that all of its holders have room: as many slots as wanted, fewer, and only if not even the
 * fewest fit, with recomputation; one slot in the end. Null if nothing helps.
 */
export function chooseRun(fit: Fit, demand: StageDemand): StageRun | null {
  for (const recompute of fit.levels) {
    const slots = mostSlots(fit, demand, recompute);
    const enough = slots >= demand.slotsLeast || (slots > 0 && recompute === fit.levels.at(-1));
    if (enough) return { slots, recompute };
  }
  return null;
}

/** 0 if not one slot fits. */
function mostSlots(fit: Fit, demand: StageDemand, recompute: RecomputeId): number {
  for (let slots = demand.slots; slots > 0; slots--) {
    if (fits(fit, demand, { slots, recompute })) return slots;
  }
  return 0;
}

/** The run with the least memory that the configuration allows. */
export function leastRun(fit: Fit): StageRun {
  return { slots: 1, recompute: fit.levels.at(-1)! };
}

/** In one sentence: the stage that lacks most, how much it needs at least, and who offers how much. */
export function shortfall(fit: Fit, demands: readonly StageDemand[]): string {
  let worst = { missing: -Infinity, text: "" };
  for (const { stage, holders } of demands) {
    const needed = (peer: PeerRecord) => fit.bytes(stage, leastRun(fit), peer);
    for (const { peer, room } of holders) {
      const missing = needed(peer) - room;
      if (missing <= worst.missing) continue;
      const name = `stage ${stage.index + 1} of ${demands.length} (${layersText(stage)})`;
      const offers = `${peer.id} has ${megabytes(room, Math.floor)} for it`;
      const text = `${name} needs ${megabytes(needed(peer))} and ${offers}; ${
        megabytes(missing)
      } are missing`;
      worst = { missing, text };
    }
  }
  return worst.text;
}

function megabytes(bytes: number, round = Math.ceil): string {
  return `${round(bytes / 1e6)} MB`;
}
