// What a configuration would take before anybody has joined: parameters, memory, how many peers of one offer are needed, and the
// time to finish, by the planner's own figures for peers that are all alike. Pure. An estimate: what peers measure replaces it.
import { baseSpec, paramCount, specOf, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { holderBytes } from "../../peer/model/stage_memory.ts";
import type { Estimate } from "../../peer/wire/hub.ts";
import type { ModelSpec, RunConfig, StageSpec } from "../../peer/wire/run.ts";
import { plan } from "./planner.ts";
import { capacityOf, infeasibility } from "./planner_feasible.ts";
import { CostModel } from "./planner_model.ts";
import type { Plan, PlannerPeer, PlanRequest } from "./planner_types.ts";

/** More alike peers than this are not tried: a plan for them would hold up the runs that are under way. */
export const ESTIMATED_PEERS_MAX = 64;
/** Operations that the simulator runs for one estimate; a form asks again with every key that is pressed. */
const SIMULATED_OPS = 12_000;
/** One way between two peers, and its rate: homes of one country, good uplinks. */
const LATENCY_S = 0.02;
const BYTES_PER_S = 5e6;
/** Round trip to the coordinator, clip and AdamW. */
const COMMIT_S = 0.05;
/** Bytes per parameter of a checkpoint: weights, two moments, exponents. */
const STATE_BYTES_PER_PARAM = 13;
/** Share of the text that a run trains on; the rest is the validation split. */
const TRAIN_SHARE = 0.9;

export interface EstimateRequest {
  config: RunConfig;
  /** Of the text: tokens in it, and how many different ones there are. */
  tokens: number;
  vocabulary: number;
  /** Memory that each peer offers. */
  offerBytes: number;
  /** Billions of operations a second that each peer has. */
  gflops: number;
}

export function estimate(request: EstimateRequest): Estimate {
  const { config, tokens, vocabulary } = request;
  const spec = specOf(config, vocabulary);
  const params = paramCount(spec);
  const tokensPerStep = config.batch_size * config.gradient_accumulation_steps * spec.block_size;
  const needed = peersNeeded(request, spec);
  const peers = Math.min(ESTIMATED_PEERS_MAX, Math.max(needed.count ?? 1, config.min_peers));
  const found = needed.count === null ? null : planFor(request, spec, peers);
  const stepSeconds = found?.seconds ?? null;
  return {
    ...{ params, tokensPerStep, peersNeeded: needed.count, reason: needed.reason, peers, stepSeconds },
    epochs: tokensPerStep * config.max_iters / Math.max(1, tokens * TRAIN_SHARE),
    wholeBytes: bytesOf(request, spec, wholeModel(spec)),
    stages: (found?.stages ?? []).map(({ firstLayer, endLayer, bytes, replicas, shadows }) => ({
      ...{ firstLayer, endLayer, bytes, peers: replicas.length + shadows.length },
    })),
    totalSeconds: stepSeconds === null ? null : stepSeconds * passes(config),
    checkpointBytes: STATE_BYTES_PER_PARAM * params,
  };
}

/** Training steps, and the evaluations between them as shares of one: forwards alone, a third of the work. */
function passes({ max_iters, eval_interval, eval_iters, gradient_accumulation_steps }: RunConfig): number {
  const evaluations = Math.floor(max_iters / eval_interval) + 1;
  return max_iters + evaluations * eval_iters / gradient_accumulation_steps / 3;
}

/** Fewest peers whose memory holds the model; more of the same never hold less, so halves are enough to find it. */
function peersNeeded(request: EstimateRequest, spec: ModelSpec): { count: number | null; reason: string } {
  const refusal = (count: number) => {
    const model = new CostModel(requestFor(request, spec, count));
    const wanted = request.config.n_stage;
    const most = Math.min(wanted > 0 ? wanted : Infinity, count, model.layers);
    // They are all alike, so one is measured for all.
    const capacity = capacityOf(model, 0);
    return infeasibility(model, Array(count).fill(capacity), most);
  };
  const last = refusal(ESTIMATED_PEERS_MAX);
  if (last !== null) return { count: null, reason: last.reason };
  let [low, high] = [1, ESTIMATED_PEERS_MAX];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (refusal(middle) === null) high = middle;
    else low = middle + 1;
  }
  return { count: low, reason: "" };
}

function planFor(request: EstimateRequest, spec: ModelSpec, count: number): Plan | null {
  const found = plan(requestFor(request, spec, count));
  return found.kind === "plan" ? found : null;
}

function requestFor(request: EstimateRequest, spec: ModelSpec, count: number): PlanRequest {
  const { config, offerBytes } = request;
  const seconds = operationSeconds(request, spec);
  const engine = { engine: "wgsl", forward: seconds, backward: seconds, weightGrad: seconds };
  const peers = Array.from({ length: count }, (_, number): PlannerPeer => ({
    ...{ id: `peer-${number + 1}`, engines: [engine], memoryBytes: offerBytes, hidden: false },
  }));
  const ops = { schedule: "dynamic", simulatedOps: SIMULATED_OPS, commitSeconds: COMMIT_S } as const;
  return {
    ...{ spec, config, peers, ...ops },
    link: () => ({ latency: LATENCY_S, bytesPerS: BYTES_PER_S }),
    memory: (stage, run) => holderBytes(stage, run, { spec, config, kind: "wgsl" }),
  };
}

/** Seconds of F, which B and W take as well, of one layer and micro-batch: two operations per weight and token, and attention. */
function operationSeconds({ config, gflops }: EstimateRequest, spec: ModelSpec): number {
  return operationFlops(config, spec) / (gflops * 1e9);
}

/** Floating-point operations of F of one layer and micro-batch. */
export function operationFlops(config: RunConfig, spec: ModelSpec): number {
  const middle = { index: 0, firstLayer: 0, endLayer: 1, embed: false, head: false };
  const layer = stageLayout(baseSpec(spec), middle).size;
  const rows = config.batch_size * spec.block_size;
  // Scores and their use, of the half of the pairs that causality leaves.
  const attention = 2 * rows * spec.block_size * spec.n_embd;
  return 2 * layer * rows + attention;
}

function bytesOf({ config }: EstimateRequest, spec: ModelSpec, stage: StageSpec): number {
  const recompute = config.recompute === "auto" ? "none" : config.recompute;
  return holderBytes(stage, { slots: 1, recompute }, { spec, config, kind: "wgsl" });
}
