// What every step of a run must come to: the one-process run, step by step, cut into whatever stages a view has. Not the run
// itself (test/support/one_process.ts is); computed once per configuration. With tied embeddings the last bits depend on the
// cut, so there the first world that has a cut sets what all others must reproduce.
import { withDelay } from "../../peer/exact/delay.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { BLOCK_VALUES, blockCount, createState, type StageState } from "../../peer/exact/state.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import type { Corpus } from "../../peer/model/data.ts";
import {
  EMBEDDING_NAME,
  findTensor,
  type StageLayout,
  stageLayout,
  wholeModel,
} from "../../peer/model/layout.ts";
import type { ModelSpec, RunConfig, StageSpec } from "../../peer/wire/run.ts";
import { isDelayed } from "../../peer/wire/view.ts";
import { runOneProcess } from "../support/one_process.ts";

export type Range = Pick<StageSpec, "firstLayer" | "endLayer" | "embed" | "head">;

/** A stage at a step, and the cuts that led there. */
export interface Place {
  range: Range;
  step: number;
  history: string;
}

export interface ReferenceOptions {
  config: RunConfig;
  spec: ModelSpec;
  corpus: Corpus;
  createEngine: (build: StageBuild) => Promise<StageEngine>;
}

const known = new Map<string, Promise<Reference>>();

/** `name` tells engines apart; a reference is made once for each pair of engine and configuration. */
export function referenceOf(options: ReferenceOptions, name: string): Promise<Reference> {
  const { n_stage: _, min_peers: __, schedule, shadows: ___, ...rest } = options.config;
  // Of the schedules only one is another training.
  const key = `${name} ${isDelayed({ schedule }) ? schedule : ""} ${JSON.stringify(rest)}`;
  const found = known.get(key);
  if (found !== undefined) return found;
  const made = Reference.create(options);
  known.set(key, made);
  return made;
}

export class Reference {
  /** Mean training loss of every step. */
  readonly losses: number[];
  readonly exact: boolean;
  readonly #spec: ModelSpec;
  readonly #states: StageState[];
  readonly #stateHashes = new Map<string, string>();
  readonly #totals = new Map<string, string>();

  private constructor(spec: ModelSpec, losses: number[], states: StageState[]) {
    this.losses = losses;
    this.exact = !spec.tie_word_embeddings || spec.lora !== undefined;
    this.#spec = spec;
    this.#states = states;
  }

  static async create(options: ReferenceOptions): Promise<Reference> {
    const { config, spec, corpus } = options;
    const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
    const stage = wholeModel(spec);
    const build = { spec, stage, batchSize: config.batch_size, slots: 1, ...codecs };
    const states: StageState[] = [];
    let losses: number[] = [];
    for (let steps = 0; steps <= config.max_iters; steps++) {
      const engine = await options.createEngine(build);
      const run = await runOneProcess({ ...config, max_iters: steps }, spec, corpus, engine);
      states.push(run.state);
      losses = run.losses;
    }
    return new Reference(spec, losses, states);
  }

  get steps(): number {
    return this.#states.length - 1;
  }

  /** Parameters of the whole model after so many steps; not to be changed. */
  params(step: number): Float32Array {
    return this.#states[step]!.params;
  }

  /** Hash of a stage's state that contains `step` steps; null where only other worlds can tell. */
  stateHash(range: Range, step: number): string | null {
    if (!this.exact) return null;
    const key = keyOf(range, step);
    const found = this.#stateHashes.get(key);
    if (found !== undefined) return found;
    const hash = stateHash(this.#cut(range, step));
    this.#stateHashes.set(key, hash);
    return hash;
  }

  /**
   * For a state that the reference cannot compute; the first word counts. `history` names the cuts of all its steps, on which
   * the last bits of tied embeddings depend.
   */
  agreeOnState(place: Place, hash: string): boolean {
    return agree(this.#stateHashes, this.#keyOf(place), hash);
  }

  /** The same for a step's total: whatever happens in a world, its stages' totals are those of every other world. */
  agreeOnTotal(place: Place, hash: string): boolean {
    return agree(this.#totals, this.#keyOf(place), hash);
  }

  #keyOf({ range, step, history }: Place): string {
    return this.exact ? keyOf(range, step) : `${keyOf(range, step)} after ${history}`;
  }

  #cut(range: Range, step: number): StageState {
    const whole = this.#states[step]!;
    const layout = stageLayout(this.#spec, { ...range, index: 0 });
    const blank = { ...createState(layout, new Float32Array(layout.size)), step };
    const state = withDelay(blank, whole.before !== undefined);
    let block = 0;
    for (const tensor of layout.tensors) {
      const source = whole.layout.tensors.find((it) => it.name === tensor.name)!;
      const [first, blocks] = [blocksBefore(whole, source.name), blockCount(tensor.size)];
      for (const [target, from] of pairsOf(state, whole)) {
        target.params.set(from.params.subarray(source.offset, source.offset + source.size), tensor.offset);
        target.exponents?.set(from.exponents!.subarray(first, first + blocks), block);
      }
      block += blocks;
    }
    return state;
  }
}

interface Arrays {
  params: Float32Array;
  exponents?: Int16Array;
}

/** The arrays of a stage's state, each with the whole model's. */
function pairsOf(state: StageState, whole: StageState): [Arrays, Arrays][] {
  const arrays = ({ params, exponents, m, v, before }: StageState): Arrays[] => {
    return [{ params, exponents }, { params: m }, { params: v }, ...(before === undefined ? [] : [before])];
  };
  const from = arrays(whole);
  return arrays(state).map((target, i) => [target, from[i]!]);
}

export function sameRange(a: Pick<Range, "firstLayer" | "endLayer">, b: typeof a): boolean {
  return a.firstLayer === b.firstLayer && a.endLayer === b.endLayer;
}

/** The layers of a state, read from the names of its tensors; adapters do not tell whether there is a head. */
export function rangeOf(layout: StageLayout): Range {
  const layers = layout.tensors.map(({ name }) => /^model\.layers\.(\d+)\./.exec(name)?.[1])
    .filter((layer) => layer !== undefined).map(Number);
  const firstLayer = Math.min(...layers);
  return {
    ...{ firstLayer, endLayer: Math.max(...layers) + 1 },
    embed: firstLayer === 0 && findTensor(layout, EMBEDDING_NAME) !== undefined,
    head: findTensor(layout, "model.norm.weight") !== undefined,
  };
}

function agree(known: Map<string, string>, key: string, hash: string): boolean {
  const first = known.get(key);
  if (first === undefined) known.set(key, hash);
  return first === undefined || first === hash;
}

function keyOf({ firstLayer, endLayer, embed, head }: Range, step: number): string {
  return `${firstLayer}-${endLayer}${embed ? "e" : ""}${head ? "h" : ""}@${step}`;
}

function blocksBefore(state: StageState, name: string): number {
  let blocks = 0;
  for (const tensor of state.layout.tensors) {
    if (tensor.name === name) return blocks;
    blocks += Math.ceil(tensor.size / BLOCK_VALUES);
  }
  throw new Error(`the whole model has no ${name}`);
}
