// Why a plan is as it is, in sentences that a person can act on, and the batch size that would suit it better. Pure; it
// decides nothing.
import { megabytes, plural } from "./planner_feasible.ts";
import { codecReasons } from "./planner_codecs.ts";
import type { CostModel } from "./planner_model.ts";
import type { Settled } from "./planner.ts";
import type { HolderStages } from "./planner_shadows.ts";
import type { BatchSuggestion, PlannedStage } from "./planner_types.ts";

/** Sentences of one kind that are kept; a swarm of hundreds would fill a page. */
const SENTENCES_MAX = 8;
/** A suggested batch size this close to the run's is not worth saying. */
const SUGGESTION_FACTOR = 1.5;
/** Idle share from which more micro-batches per step are worth suggesting. */
const BUBBLE_WORTH_SAYING = 0.3;

export function reasonsFor(settled: Settled, holders: HolderStages): string[] {
  const { model } = settled;
  const { stages } = holders;
  return [
    depth(settled),
    ...twoEach(settled),
    ...stages.flatMap((stage) => memoryLimits(model, stage)).slice(0, SENTENCES_MAX),
    ...stages.flatMap((stage) => slotLimits(settled, stage)).slice(0, SENTENCES_MAX),
    pace(settled),
    ...schedules(settled),
    ...spares(settled, holders).slice(0, SENTENCES_MAX),
    ...holders.unprotected.slice(0, SENTENCES_MAX).map(({ stage, bytes }) =>
      `Stage ${stage} has no second holder: nobody has the ${megabytes(bytes)} left that it takes.`
    ),
    ...codecReasons(model, settled.candidate, settled.codecs),
    ...idle(settled),
  ];
}

function nameOf(model: CostModel, id: string): string {
  return model.request.peers.find((peer) => peer.id === id)?.name ?? id;
}

function depth({ model, candidate }: Settled): string {
  const stages = candidate.stages.length;
  const wanted = model.request.config.n_stage;
  if (wanted > stages) {
    const limit = model.peers < wanted
      ? `there are ${plural(model.peers, "peer")}`
      : model.layers < wanted
      ? `the model has ${plural(model.layers, "layer")}`
      : `no more have the memory for one`;
    return `${plural(stages, "stage")} instead of the ${wanted} that were asked for: ${limit}.`;
  }
  if (wanted > 0) return `${plural(stages, "stage")}, as the run asks for.`;
  return `${plural(stages, "stage")} for ${plural(model.peers, "peer")}: the fastest depth that was found.`;
}

function twoEach({ model, prediction, instead }: Settled): string[] {
  if (instead === undefined) return [];
  const step = (seconds: number) => `${seconds.toPrecision(3)} s`;
  const members = prediction.stages.map(({ stage }) => stage.peers.toSorted().join());
  const mirrored = members[0] === members.at(-1) && prediction.stages[0]!.stage.peers.length > 1;
  const way = mirrored ? ", and half of the micro-batches go up the line instead of down" : "";
  const asked = model.request.twoEach === true;
  const anyway = model.doubtful && !asked ? ", whether links that nobody has measured are quick or slow" : "";
  return [
    `Peers that compute hold two stages each${way}: ${step(prediction.seconds)} per step instead of ${
      step(instead)
    }${anyway}.`,
  ];
}

/** Peers that could not hold one more layer, whatever they recomputed. */
function memoryLimits(model: CostModel, stage: PlannedStage): string[] {
  const { firstLayer, endLayer, replicas } = stage;
  const count = endLayer - firstLayer;
  if (count >= model.layers) return [];
  // One more at either end; towards an end of the model it would bring the embedding or head along.
  const wider = firstLayer > 0
    ? { first: firstLayer - 1, end: endLayer }
    : { first: firstLayer, end: endLayer + 1 };
  const run = { slots: 1, recompute: model.modes.at(-1)! };
  return replicas.flatMap(({ peer }) => {
    const index = model.request.peers.findIndex(({ id }) => id === peer);
    if (model.bytes(index, wider, run) <= model.request.peers[index]!.memoryBytes) return [];
    return [`${nameOf(model, peer)} holds ${plural(count, "layer")}: its memory is the limit.`];
  });
}

/** Stages that recompute, or keep fewer micro-batches in flight than the round trip asks for. */
function slotLimits({ model, candidate }: Settled, stage: PlannedStage): string[] {
  const option = candidate.stages[stage.index]!.options.find(({ recompute }) =>
    recompute === stage.recompute
  );
  const said: string[] = [];
  if (stage.recompute !== "none" && model.request.config.recompute === "auto") {
    const what = stage.recompute === "block" ? "its layers" : "its attention";
    said.push(`Stage ${stage.index} computes ${what} again in the backward pass, to fit more micro-batches.`);
  }
  const largest = Math.max(...stage.replicas.map(({ microBatches }) => microBatches.length));
  if (option !== undefined && option.slots <= stage.inflight && option.slots < largest) {
    said.push(
      `Stage ${stage.index} keeps ${plural(stage.inflight, "micro-batch")} in flight: memory allows no more.`
        .replace("batchs", "batches"),
    );
  }
  return said;
}

function pace({ model, candidate }: Settled): string {
  const { cost, stages } = candidate;
  const stage = stages[cost.slowest]!;
  const option = stage.options[cost.options[cost.slowest]!]!;
  const seconds = `${cost.pace.toPrecision(2)} s per micro-batch`;
  const own = stages.reduce((sum, it, s) => {
    return it.peers[0] === stage.peers[0] ? sum + it.options[cost.options[s]!]!.pace : sum;
  }, 0);
  const names = stage.peers.length === 1
    ? nameOf(model, model.request.peers[stage.peers[0]!]!.id)
    : `stage ${cost.slowest}`;
  if (own >= cost.pace * (1 - 1e-9)) return `The pace is set by ${names}: ${seconds}.`;
  const next = stages[cost.slowest + 1];
  const busy = next === undefined ? 0 : model.hop(stage.peers, next.peers).pace;
  if (busy >= cost.pace * (1 - 1e-9)) {
    return `The pace is set by the link between stages ${cost.slowest} and ${cost.slowest + 1}: ${seconds}.`;
  }
  return `The pace is set by the round trip from ${names}, which has memory for ${
    Math.floor(option.inflight)
  } at a time: ${seconds}.`;
}

function schedules({ prediction, schedules: tried }: Settled): string[] {
  if (tried.length < 2) return [];
  const others = tried.filter(({ schedule }) => schedule !== prediction.schedule)
    .map(({ schedule, seconds }) => `${schedule} ${seconds.toPrecision(3)} s`);
  const own = tried.find(({ schedule }) => schedule === prediction.schedule)!;
  return [`Schedule ${own.schedule}: ${own.seconds.toPrecision(3)} s per step; ${others.join(", ")}.`];
}

function spares({ model }: Settled, { spares: left, stages }: HolderStages): string[] {
  const leanest = { slots: 1, recompute: model.modes.at(-1)! };
  return left.map((id) => {
    const index = model.request.peers.findIndex((peer) => peer.id === id);
    const room = model.request.peers[index]!.memoryBytes;
    const fits = stages.some(({ firstLayer, endLayer }) =>
      model.bytes(index, { first: firstLayer, end: endLayer }, leanest) <= room
    );
    return fits
      ? `${nameOf(model, id)} computes nothing: with it a step would not be shorter.`
      : `${nameOf(model, id)} computes nothing: no stage fits its ${megabytes(room)}.`;
  });
}

function idle({ model, prediction, candidate }: Settled): string[] {
  if (prediction.bubble < BUBBLE_WORTH_SAYING || candidate.stages.length < 2) return [];
  const share = (100 * prediction.bubble).toFixed(0);
  return [
    `Peers idle ${share} % of a step with ${model.N} micro-batches; more gradient_accumulation_steps would fill them.`,
  ];
}

/**
 * Best batch size for the same sequences per step: sqrt(S a / ((P-1) (b + 2x))), with a the seconds that a micro-batch costs
 * whatever its size, b and x the seconds of compute and transfer per sequence at the slowest stage and boundary.
 */
export function suggestBatch({ model, candidate }: Settled): BatchSuggestion | null {
  const { config } = model.request;
  const { stages, cost } = candidate;
  const sequences = config.batch_size * model.N;
  const peer = stages[cost.slowest]!.peers[0]!;
  const { overhead = 0, fixedShare = 0 } = model.engines[peer]!;
  const pass = stages[cost.slowest]!.options[cost.options[cost.slowest]!]!.pass;
  const fixed = 3 * overhead + fixedShare * (pass - 3 * overhead);
  if (fixed === 0 || stages.length < 2) return null;
  const compute = (pass - fixed) / config.batch_size;
  const transfer =
    Math.max(...stages.slice(1).map((stage, s) => model.hop(stages[s]!.peers, stage.peers).pace)) /
    config.batch_size;
  const best = Math.sqrt(sequences * fixed / ((stages.length - 1) * (compute + 2 * transfer)));
  const divisors = Array.from({ length: sequences }, (_, i) => i + 1).filter((size) =>
    sequences % size === 0
  );
  const near = (size: number) => Math.abs(Math.log(size / best));
  const batchSize = divisors.reduce((chosen, size) => near(size) < near(chosen) ? size : chosen);
  const ratio = batchSize / config.batch_size;
  if (ratio < SUGGESTION_FACTOR && ratio > 1 / SUGGESTION_FACTOR) return null;
  return { batchSize, microBatches: sequences / batchSize };
}
