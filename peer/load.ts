// Building a stage instance: its state from the seed or from a snapshot's files, its engine new or reused. Used by holder.ts.
// A file is believed only if its content has the hash that the view named.
import type { StageBuild, StageEngine, StageOptimizer } from "./engine/engine.ts";
import { withDelay } from "./exact/delay.ts";
import { stateHash } from "./exact/hash.ts";
import { createState, type StageState } from "./exact/state.ts";
import { emptySums, type Held } from "./held.ts";
import { buildEngines, loadEngines } from "./held_engines.ts";
import type { Corpus, TokenSource } from "./model/data.ts";
import { initParams } from "./model/init.ts";
import { stageLayout } from "./model/layout.ts";
import { decodeSafetensors, type TensorMap } from "./model/safetensors.ts";
import { mergeStates } from "./model/state_file.ts";
import type { StateFile, StateSource } from "./wire/control.ts";
import { ShoalError } from "./wire/errors.ts";
import type { ModelSpec, RunConfig, StagePlan, StageSpec, View } from "./wire/run.ts";
import { codecsAfter, isDelayed } from "./wire/view.ts";

export interface HolderOptions {
  /** Id of the peer that holds; the view's plans are read for it. */
  self: string;
  config: RunConfig;
  spec: ModelSpec;
  /** All tokens, or where they are asked for. */
  corpus: Corpus | TokenSource;
  createEngine(build: StageBuild): Promise<StageEngine>;
  fetchState(step: number, file: StateFile): Promise<Uint8Array>;
  /** The weights that a run begins with, flat in the layout of the stage; `hash` names them all. Absent: from the files. */
  fetchWeights?(stage: StageSpec, hash: string): Promise<Float32Array>;
  /** What a stage's engine will need of elsewhere is fetched now, for a holder that may have to compute at once later. */
  prefetch?(stage: StageSpec): Promise<void>;
  /** Told which stages are held, whenever that has changed. */
  onHeld?(stages: readonly StagePlan[]): void;
}

export interface LoadRequest {
  plan: StagePlan;
  view: View;
  source: StateSource | null;
  /** An instance of the same build; its engine is kept. */
  reuse: Held | null;
  /** State of the same layers held before this view; used if it is bit-equal to the source. */
  before: StageState | null;
}

/** Two plans with the same key need the same engine. */
export function instanceKey(plan: StagePlan, view: View, self: string): string {
  const { firstLayer, endLayer, embed, head, inflight, recompute = "none", optimizer = "exact" } = plan;
  const { codecForward, codecBackward, codecsBefore } = codecsOf(plan, view);
  const shape = [
    firstLayer,
    endLayer,
    embed,
    head,
    inflight,
    recompute,
    optimizer,
    codecForward,
    codecBackward,
    codecsBefore.forward,
    codecsBefore.backward,
    view.config?.batch_size ?? "",
    isDelayed(view),
  ];
  return [...shape, computes(plan, self) ? "computes" : "shadow"].join("/");
}

/** Codecs of both of the stage's boundaries. */
function codecsOf({ index }: StagePlan, view: View) {
  const after = codecsAfter(view, index);
  return {
    ...{ codecForward: after.forward, codecBackward: after.backward },
    codecsBefore: codecsAfter(view, index - 1),
  };
}

function computes(plan: StagePlan, self: string): boolean {
  return plan.replicas.some((replica) => replica.peer === self && replica.microBatches.length > 0);
}

/** What is needed to build the stage's engine. */
export function buildOf(options: HolderOptions, plan: StagePlan, view: View): StageBuild {
  return {
    spec: options.spec,
    stage: stageOf(plan),
    batchSize: options.config.batch_size,
    slots: plan.inflight,
    ...codecsOf(plan, view),
    recompute: plan.recompute ?? "none",
    optimizer: plan.optimizer ?? "exact",
    dtype: options.config.dtype ?? "f32",
  };
}

/** A learner's instance from the bytes of a state file; its hash is for the caller to compare. */
export function adoptInstance(
  options: HolderOptions,
  request: { plan: StagePlan; view: View; bytes: Uint8Array },
): Held | null {
  const { plan, view, bytes } = request;
  const decoded = decodeSafetensors(bytes);
  if (!decoded.ok) return null;
  const merged = mergeStates(options.spec, [decoded.value], plan);
  return merged.ok ? createHeld(instanceKey(plan, view, options.self), { plan, state: merged.value }) : null;
}

function createHeld(key: string, { plan, state }: Pick<Held, "plan" | "state">): Held {
  const { size } = state.layout;
  return {
    ...{ key, plan, state, saturated: 0, nonFinite: 0, overflow: false, tied: null, log: new Map() },
    ...{ engine: null, odd: null, ahead: null },
    ...{ optimizer: null, sumIsStale: false, ...emptySums(size) },
    ...{ inbox: new Map(), outbox: new Map() },
  };
}

/** The values are the optimizer's now. */
function onDevice(held: Held, optimizer: StageOptimizer): Held {
  const [none, exponents] = [new Float32Array(0), new Int16Array(0)];
  const state = { ...held.state, params: none, m: none, v: none, exponents };
  return { ...held, state, optimizer, ...emptySums(0) };
}

export async function loadInstance(options: HolderOptions, request: LoadRequest): Promise<Held> {
  const { plan, view } = request;
  const delayed = isDelayed(view);
  const state = withDelay(await loadState(options, request), delayed);
  const held = createHeld(instanceKey(plan, view, options.self), { plan, state });
  if (computes(plan, options.self)) {
    Object.assign(held, { engine: request.reuse?.engine ?? null, odd: request.reuse?.odd ?? null });
    const create = (build: StageBuild) => options.createEngine(build);
    await buildEngines(held, buildOf(options, plan, view), { delayed, create });
  } else {
    await options.prefetch?.(stageOf(plan));
  }
  const optimizer = plan.optimizer === "gpu" ? held.engine?.optimizer : undefined;
  if (optimizer === undefined) {
    await loadEngines(held);
    return held;
  }
  await optimizer.load(state);
  return onDevice(held, optimizer);
}

function stageOf(plan: StagePlan): StageSpec {
  const { index, firstLayer, endLayer, embed, head } = plan;
  return { index, firstLayer, endLayer, embed, head };
}

async function loadState(options: HolderOptions, request: LoadRequest): Promise<StageState> {
  const { spec, config } = options;
  const { plan, source, before } = request;
  if (source === null) return createState(stageLayout(spec, plan), initParams(spec, plan, config.seed));
  const same = source.files.find((file) => covers(file, plan) && covers(plan, file));
  if (before !== null && same !== undefined && stateHash(before) === same.hash) return before;
  const needed = source.files.filter((file) => overlaps(file, plan));
  const begun = await begin(options, { plan, step: source.step, needed });
  if (begun !== null) {
    if (same !== undefined) checkHash(begun, same);
    return begun;
  }
  const files: TensorMap[] = [];
  for (const file of needed) files.push(await fetchVerified(options, source.step, file));
  const merged = mergeStates(spec, files, plan);
  if (!merged.ok) throw new ShoalError(merged.code, merged.reason);
  return merged.value;
}

/** The state before a run's first step needs no moments over the wire, which are zero; null if the source is another one. */
async function begin(
  { spec, fetchWeights }: HolderOptions,
  { plan, step, needed }: { plan: StagePlan; step: number; needed: readonly StateFile[] },
): Promise<StageState | null> {
  const hash = needed[0]?.base;
  if (fetchWeights === undefined || hash === undefined || step !== 0) return null;
  if (needed.some(({ base }) => base !== hash)) return null;
  return createState(stageLayout(spec, plan), await fetchWeights(stageOf(plan), hash));
}

async function fetchVerified(options: HolderOptions, step: number, file: StateFile): Promise<TensorMap> {
  const bytes = await options.fetchState(step, file);
  const decoded = decodeSafetensors(bytes);
  if (!decoded.ok) throw new ShoalError(decoded.code, decoded.reason);
  const own = mergeStates(options.spec, [decoded.value], { ...file, index: file.stage });
  if (!own.ok) throw new ShoalError(own.code, own.reason);
  checkHash(own.value, file);
  return decoded.value;
}

function checkHash(state: StageState, file: StateFile): void {
  const hash = stateHash(state);
  if (hash === file.hash) return;
  throw new ShoalError("bad-state", `state of stage ${file.stage} has hash ${hash}, expected ${file.hash}`);
}

type Range = Pick<StageSpec, "firstLayer" | "endLayer" | "embed" | "head">;

function covers(a: Range, b: Range): boolean {
  return a.firstLayer <= b.firstLayer && a.endLayer >= b.endLayer && (a.embed || !b.embed) &&
    (a.head || !b.head);
}

function overlaps(a: Range, b: Range): boolean {
  return a.firstLayer < b.endLayer && b.firstLayer < a.endLayer || (a.embed && b.embed) || (a.head && b.head);
}
