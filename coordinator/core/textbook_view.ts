// Places a published schedule on peers: as many of them as it can use, layers by speed, slots for what its order holds. Pure; the
// dynamic order's stages are view_builder.ts's. What must stay true: the stages are exactly the schedule's placement, so that
// peers follow its order, and whatever a peer is given fits what it offers.
import { splitLayers } from "../../peer/model/layout.ts";
import {
  directionsOf,
  emitSchedule,
  isPlaced,
  type PlacedScheduleId,
  type ScheduleSize,
  stagesFor,
} from "../../peer/schedule/catalogue.ts";
import type { Schedule } from "../../peer/schedule/ir.ts";
import { pipelineShare, slotsOf } from "../../peer/schedule/placed.ts";
import type { ModelSpec, RunConfig, StagePlan } from "../../peer/wire/run.ts";
import { holds } from "../../peer/wire/view.ts";
import { type Fit, roomBeside } from "./fit.ts";
import type { PeerRecord } from "./run_state.ts";

/** On one device no schedule differs from any other. */
const DEVICES_LEAST = 2;
/** Sizes that are judged by memory: fewer peers hold more each, and a large order takes a while to write down. */
const SIZES_MAX = 3;

export interface TextbookRequest {
  spec: ModelSpec;
  config: RunConfig;
  /** All usable. */
  peers: readonly PeerRecord[];
  fit: Fit;
  /** Speed that a peer is planned with, relative to the others. */
  speedOf(peer: PeerRecord): number;
}

/** The stages and how many peers compute them, or one sentence that says what is missing. */
export type Textbook =
  | { stages: StagePlan[]; devices: number; missing: null }
  | { stages: null; devices: 0; missing: string };

/**
 * The configured schedule on as many of the peers as it can use, the fastest where there are too many and these have room, else
 * the roomiest; the others hold nothing.
 * The sentence is about the most peers where memory is missing, else about the fewest.
 */
export function planTextbook(request: TextbookRequest): Textbook {
  const { config, peers } = request;
  const { schedule } = config;
  if (!isPlaced(schedule)) return missing(`${schedule} takes any placement`);
  const shortfalls: string[] = [];
  let refusal = `${schedule} needs at least ${DEVICES_LEAST} peers, there is ${peers.length}`;
  for (let devices = peers.length; devices >= DEVICES_LEAST && shortfalls.length < SIZES_MAX; devices--) {
    const order = orderFor(schedule, devices, request);
    if (typeof order === "string") {
      refusal = order;
      continue;
    }
    const placed = placeOnBest(order, request);
    if (typeof placed !== "string") return { stages: placed, devices, missing: null };
    shortfalls.push(placed);
  }
  return missing(shortfalls[0] ?? refusal);
}

function missing(sentence: string): Textbook {
  return { stages: null, devices: 0, missing: sentence };
}

function orderFor(
  schedule: PlacedScheduleId,
  devices: number,
  { config, spec }: TextbookRequest,
): Schedule | string {
  const stages = stagesFor(schedule, devices, config.n_stage);
  if (typeof stages === "string") return stages;
  if (stages > spec.n_layer) {
    return `${schedule} on ${devices} peers needs ${stages} layers, the model has ${spec.n_layer}`;
  }
  const directions = directionsOf(schedule, config.chimera_pairs);
  const size: ScheduleSize = {
    devices,
    stages,
    microBatches: config.gradient_accumulation_steps,
    directions,
  };
  return emitSchedule(schedule, size);
}

/** On the fastest peers; on the roomiest if one of those is too small for its stages. */
function placeOnBest(order: Schedule, request: TextbookRequest): StagePlan[] | string {
  const { peers, speedOf } = request;
  const quick = placeOn(order, best(peers, order.devices, speedOf), request);
  if (typeof quick !== "string" || order.devices === peers.length) return quick;
  const roomy = placeOn(order, best(peers, order.devices, (peer) => peer.memoryBytes), request);
  return typeof roomy === "string" ? quick : roomy;
}

/** In the order in which they came. */
function best(
  peers: readonly PeerRecord[],
  devices: number,
  worth: (peer: PeerRecord) => number,
): PeerRecord[] {
  const chosen = peers.toSorted((a, b) => worth(b) - worth(a)).slice(0, devices);
  return peers.filter((peer) => chosen.includes(peer));
}

/** With as little computed again as memory allows; a sentence if nothing helps. */
function placeOn(order: Schedule, chosen: PeerRecord[], request: TextbookRequest): StagePlan[] | string {
  const { fit } = request;
  const devices = devicesOf(order, chosen, request);
  const plain = stagesOf(order, devices, request);
  let short = "";
  for (const recompute of fit.levels) {
    const stages = recompute === "none" ? plain : plain.map((stage) => ({ ...stage, recompute }));
    const held = heldStages(order, stages);
    const lacking = devices.map((peer, device) => ({ peer, room: roomBeside(fit, held[device]!, peer) }))
      .reduce((worst, it) => it.room < worst.room ? it : worst);
    if (lacking.room >= 0) return stages;
    short = shortText(stages, lacking);
  }
  return short;
}

/** Of each device, once each: in two pipelines it has the same stage as another. */
function heldStages({ placement, devices }: Schedule, stages: readonly StagePlan[]): StagePlan[][] {
  const held = Array.from({ length: devices }, () => new Set<StagePlan>());
  for (const of of placement) of.forEach((device, stage) => held[device]!.add(stages[stage]!));
  return held.map((set) => [...set]);
}

/** Peers that hold the same stages are of like speed, since the slower one decides how long these take. */
function devicesOf(order: Schedule, chosen: PeerRecord[], { speedOf }: TextbookRequest): PeerRecord[] {
  const bidirectional = order.placement.length > 1;
  const queue = bidirectional ? chosen.toSorted((a, b) => speedOf(b) - speedOf(a)) : [...chosen];
  const devices: PeerRecord[] = [];
  for (let stage = 0; stage < order.stages; stage++) {
    for (const of of order.placement) devices[of[stage]!] ??= queue.shift()!;
  }
  return devices;
}

function stagesOf(
  order: Schedule,
  devices: readonly PeerRecord[],
  { spec, speedOf }: TextbookRequest,
): StagePlan[] {
  const { placement, microBatches } = order;
  const slots = slotsOf(order);
  const shares = placement.map((_, direction) => pipelineShare(direction, placement.length, microBatches));
  // Every device holds as many stages as any other.
  const weights = slots.map((_, stage) => Math.min(...placement.map((of) => speedOf(devices[of[stage]!]!))));
  return splitLayers(spec, weights).map((stage, s): StagePlan => ({
    ...stage,
    inflight: slots[s]!,
    replicas: placement.map((of, direction) => ({
      peer: devices[of[s]!]!.id,
      microBatches: [...shares[direction]!],
    })),
  }));
}

function shortText(stages: StagePlan[], { peer, room }: { peer: PeerRecord; room: number }): string {
  const held = stages.filter((stage) => holds(stage, peer.id)).map((stage) => stage.index + 1);
  const which = held.length === 1 ? `stage ${held[0]}` : `stages ${held.join(" and ")}`;
  return `${peer.id} has too little memory for ${which} of ${stages.length}: ${
    Math.ceil(-room / 1e6)
  } MB are missing`;
}
