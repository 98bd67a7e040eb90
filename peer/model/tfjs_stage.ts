// The order of a stage's operations over any StageMath: F, B and W of embedding, blocks and head, and what a slot holds
// in between. Not the engine (tfjs.ts), which knows inputs, codecs and slots. Twin of shaders/reference/stage.ts, except
// that norm outputs are computed again in W and the gradients of gains already in B, which keeps a slot small.
import {
  EMBEDDING_NAME,
  FINAL_BIAS_NAME,
  FINAL_NORM_NAME,
  findTensor,
  HEAD_NAME,
  POSITIONS_NAME,
  stageLayout,
} from "./layout.ts";
import { assert } from "../wire/errors.ts";
import type { StageBuild } from "../engine/engine.ts";
import {
  blockNames,
  type BlockWeights,
  freeBlock,
  loadBlock,
  loadNorm,
  type Values,
} from "./tfjs_block_weights.ts";
import { adapterStack } from "./lora_groups.ts";
import { type PlacedGrad, TfjsAdapters } from "./tfjs_adapters.ts";
import { type BlockKept, type BlockSlot, headMatrices, type HeadSlot, type StageSlot } from "./tfjs_slots.ts";
import { headTiles, type MathShape, type StageMath } from "./tfjs_math.ts";

export type { StageSlot } from "./tfjs_slots.ts";

export interface StageWeights<X, W> {
  blocks: BlockWeights<X, W>[];
  /** [V, C]; tied in a single stage, both are one. GPT-2's positions are [T, C]. */
  embedding?: X;
  positions?: X;
  head?: X;
  norm?: X;
}

/**
 * A gradient, and where it goes: so many values after the start of the named tensor, and over its neighbours; or, with tokens,
 * added to the rows of the named table that they name. Valid until the generator that gave it goes on.
 */
export interface NamedGrad<X> {
  name: string;
  gradient: X;
  skipped?: number;
  tokens?: Uint32Array;
}

/** Whoever drives an operation may do something else at each null, between two layers. */
export type Steps<X, R> = Generator<NamedGrad<X> | PlacedGrad<X> | null, R, undefined>;

export class TfjsStage<X, W> {
  readonly shape: MathShape;
  readonly #build: StageBuild;
  readonly #math: StageMath<X, W>;
  /** What alone is trained, if the build has adapters. */
  readonly adapters: TfjsAdapters<X, W> | null;
  #weights: StageWeights<X, W> | null = null;

  constructor(build: StageBuild, math: StageMath<X, W>, shape: MathShape) {
    this.shape = shape;
    this.#build = build;
    this.#math = math;
    const stack = adapterStack(build);
    this.adapters = stack ? new TfjsAdapters(math, stack) : null;
  }

  load(values: Values): void {
    this.unload();
    const { spec, stage } = this.#build;
    const { T, C, V, gpt2 } = this.shape;
    const math = this.#math, shape = this.shape;
    const table = (name: string) => math.upload(values(name), V, C);
    const weights: StageWeights<X, W> = { blocks: [] };
    if (stage.embed) weights.embedding = table(EMBEDDING_NAME);
    if (stage.embed && gpt2) weights.positions = math.upload(values(POSITIONS_NAME), T, C);
    for (let layer = stage.firstLayer; layer < stage.endLayer; layer++) {
      weights.blocks.push(loadBlock(math, values, { prefix: `model.layers.${layer}`, shape }));
    }
    if (stage.head) {
      const tied = spec.tie_word_embeddings;
      const names = { first: FINAL_NORM_NAME, last: gpt2 ? FINAL_BIAS_NAME : FINAL_NORM_NAME };
      weights.norm = loadNorm(math, values, { names, shape });
      weights.head = tied && weights.embedding ? weights.embedding : table(tied ? EMBEDDING_NAME : HEAD_NAME);
    }
    this.#weights = weights;
  }

  unload(): void {
    const math = this.#math, weights = this.#weights;
    this.adapters?.unload();
    if (!weights) return;
    for (const block of weights.blocks) freeBlock(math, block);
    const { embedding, positions, head, norm } = weights;
    if (embedding) math.free(embedding);
    if (positions) math.free(positions);
    if (head && head !== embedding) math.free(head);
    if (norm) math.free(norm);
    this.#weights = null;
  }

  /** F: from tokens, or from the input that the slot then keeps, to the output or, with targets, the loss [1, 1]. */
  *forward(
    held: StageSlot<X>,
    { input, targets, keep }: { input: X | Uint32Array; targets?: Uint32Array; keep: boolean },
  ): Steps<X, X> {
    const { blocks } = this.#loaded();
    if (input instanceof Uint32Array) held.tokens = input;
    let x = input instanceof Uint32Array ? this.#embed(input) : input;
    for (const [layer] of blocks.entries()) {
      yield null;
      const { out, kept } = this.#blockForward(layer, x);
      const slot = { x, kept };
      held.blocks.push(slot);
      if (!keep) this.#drop(held.blocks);
      else if (this.#recomputes) this.#trim(slot);
      x = out;
    }
    if (!targets) return x;
    yield null;
    return this.#headForward(held, x, { targets, keep });
  }

  /** B: from the gradient of the output (null at the head) to that of the input; null with an embedding. */
  *backward(held: StageSlot<X>, gradient: X | null): Steps<X, X | null> {
    const again = this.#recomputes;
    let dX = gradient ?? this.#headInputGrad(held.head!);
    if ((again || this.adapters) && held.head) {
      if (!this.adapters) yield* this.#headWeightGrads(held.head);
      this.#freeHead(held.head);
      delete held.head;
    }
    for (let layer = held.blocks.length - 1; layer >= 0; layer--) {
      yield null;
      const slot = held.blocks[layer]!;
      dX = this.#blockInputGrad(layer, slot, dX);
      if (!again) continue;
      yield* this.#blockWeightGrads(layer, slot);
      this.#drop(held.blocks);
    }
    if (!this.#build.stage.embed) return dX;
    held.dEmbedded = dX;
    if (!again && !this.adapters) return null;
    if (!this.adapters) yield* this.#embeddingGrad(held);
    this.#math.free(dX);
    delete held.dEmbedded;
    return null;
  }

  /** W: every gradient, the head's before the embedding's, which adds to it if they are tied. Nothing if B gave them. */
  *weightGrads(held: StageSlot<X>): Steps<X, void> {
    if (this.#recomputes) return;
    if (held.head) yield* this.#headWeightGrads(held.head);
    for (const [layer, slot] of held.blocks.entries()) {
      yield null;
      yield* this.#blockWeightGrads(layer, slot);
    }
    if (held.dEmbedded) yield* this.#embeddingGrad(held);
  }

  /** Recomputing the attention alone would save nothing: its weights are never kept. */
  get #recomputes(): boolean {
    return this.#build.recompute === "block";
  }

  #embed(tokens: Uint32Array): X {
    const { embedding, positions } = this.#loaded();
    const x = this.#math.embed(embedding!, tokens);
    return positions === undefined ? x : this.#math.addPositions(x, positions);
  }

  *#embeddingGrad({ dEmbedded, tokens }: StageSlot<X>): Steps<X, void> {
    assert(dEmbedded && tokens, "W follows B");
    yield { name: EMBEDDING_NAME, gradient: dEmbedded, tokens };
    if (this.shape.gpt2) yield* this.#once(POSITIONS_NAME, this.#math.sumPositions(dEmbedded));
  }

  #blockForward(layer: number, x: X): { out: X; kept: BlockKept<X> } {
    const math = this.#math, w = this.#block(layer);
    const first = math.normalize(x, w.attentionNorm);
    const heads = this.#linear(w, "qkv", first.y), qkv = this.shape.gpt2 ? heads : math.rotate(heads);
    math.free(first.y);
    const attended = math.attend(qkv);
    const middle = math.add(this.#linear(w, "project", attended), x);
    const second = math.normalize(middle, w.mlpNorm);
    const gateUp = this.#linear(w, "gateUp", second.y);
    math.free(second.y);
    const act = this.shape.gpt2 ? math.gelu(gateUp) : math.swiglu(gateUp);
    const out = math.add(this.#linear(w, "down", act), middle);
    math.free(act);
    const rstds = { attentionRstd: first.rstd, mlpRstd: second.rstd };
    return { out, kept: { ...rstds, qkv, attended, middle, gateUp } };
  }

  #linear(w: BlockWeights<X, W>, name: "qkv" | "project" | "gateUp" | "down", x: X): X {
    const y = this.#math.forward(x, w[name]);
    return w.biases === undefined ? y : this.#math.addRow(y, w.biases[name]);
  }

  /** dOut, which the slot keeps, to dX. */
  #blockInputGrad(layer: number, block: BlockSlot<X>, dOut: X): X {
    const math = this.#math, w = this.#block(layer);
    const slot = block.kept ??= this.#again(layer, block.x);
    slot.dOut = dOut;
    const dAct = math.inputGrad(dOut, w.down);
    const gates = this.shape.gpt2 ? math.geluGrad(slot.gateUp, dAct) : math.swigluGrad(slot.gateUp, dAct);
    [slot.gateUp, slot.act] = [gates.dGateUp, gates.act];
    const mlp = math.normGrad(math.inputGrad(slot.gateUp, w.gateUp), {
      ...{ x: slot.middle, gain: w.mlpNorm, rstd: slot.mlpRstd },
    });
    slot.dMlpGain = mlp.dGain;
    const dMiddle = slot.dMiddle = math.add(mlp.dx, dOut);
    slot.qkv = math.attendGrad(slot.qkv, slot.attended, math.inputGrad(slot.dMiddle, w.project));
    const attention = math.normGrad(math.inputGrad(slot.qkv, w.qkv), {
      ...{ x: block.x, gain: w.attentionNorm, rstd: slot.attentionRstd },
    });
    slot.dAttentionGain = attention.dGain;
    const dX = math.add(attention.dx, dMiddle);
    this.#freeUnread(slot);
    return dX;
  }

  /** What W would read of weights that are frozen beside adapters. */
  #freeUnread(slot: BlockKept<X>): void {
    const { adapters } = this;
    if (adapters === null) return;
    const unread: (keyof BlockKept<X>)[] = ["dAttentionGain", "dMlpGain"];
    if (!adapters.trains("down")) unread.push("act", "dOut");
    if (!adapters.trains("project")) unread.push("dMiddle");
    for (const name of unread) {
      this.#math.free(slot[name]!);
      delete slot[name];
    }
  }

  /** What F of a block kept, computed again. */
  #again(layer: number, x: X): BlockKept<X> {
    const { out, kept } = this.#blockForward(layer, x);
    this.#math.free(out);
    return kept;
  }

  *#blockWeightGrads(layer: number, block: BlockSlot<X>): Steps<X, void> {
    if (this.adapters) return yield* this.#adapterGrads(this.adapters, layer, block);
    const { x, kept: slot } = block;
    const math = this.#math, w = this.#block(layer);
    assert(slot, "W follows B");
    const { act, dOut, dMiddle, dAttentionGain, dMlpGain } = slot;
    assert(act && dOut && dMiddle && dAttentionGain && dMlpGain, "W follows B");
    const prefix = `model.layers.${this.#build.stage.firstLayer + layer}`;
    const names = blockNames(prefix, this.shape.gpt2);
    yield* this.#product(names.down, dOut, act);
    const mlpIn = math.renormalize(slot.middle, w.mlpNorm, slot.mlpRstd);
    yield* this.#product(names.gateUp, slot.gateUp, mlpIn);
    math.free(mlpIn);
    yield* this.#product(names.project, dMiddle, slot.attended);
    const attentionIn = math.renormalize(x, w.attentionNorm, slot.attentionRstd);
    yield* this.#product(names.qkv, slot.qkv, attentionIn);
    math.free(attentionIn);
    yield { name: names.attentionNorm.first, gradient: dAttentionGain };
    yield { name: names.mlpNorm.first, gradient: dMlpGain };
  }

  *#adapterGrads(
    adapters: TfjsAdapters<X, W>,
    layer: number,
    { x, kept: slot }: BlockSlot<X>,
  ): Steps<X, void> {
    const math = this.#math, w = this.#block(layer);
    assert(slot, "W follows B");
    const { act, dOut, dMiddle } = slot;
    if (act && dOut) yield* adapters.grads({ layer, kind: "down" }, dOut, act);
    if (dMiddle) yield* adapters.grads({ layer, kind: "project" }, dMiddle, slot.attended);
    if (adapters.trains("gateUp")) {
      const mlpIn = math.renormalize(slot.middle, w.mlpNorm, slot.mlpRstd);
      yield* adapters.grads({ layer, kind: "gateUp" }, slot.gateUp, mlpIn);
      math.free(mlpIn);
    }
    if (adapters.trains("qkv")) {
      const attentionIn = math.renormalize(x, w.attentionNorm, slot.attentionRstd);
      yield* adapters.grads({ layer, kind: "qkv" }, slot.qkv, attentionIn);
      math.free(attentionIn);
    }
  }

  /** Of a matrix, and of its bias. */
  *#product(names: { first: string; bias: { first: string } }, dy: X, x: X): Steps<X, void> {
    yield* this.#once(names.first, this.#math.weightGrad(dy, x));
    if (this.shape.gpt2) yield* this.#once(names.bias.first, this.#math.sumRows(dy));
  }

  /** Gives a gradient that nobody needs any more. */
  *#once(name: string, gradient: X): Steps<X, void> {
    yield { name, gradient };
    this.#math.free(gradient);
  }

  #headForward(
    held: StageSlot<X>,
    x: X,
    { targets, keep }: { targets: Uint32Array; keep: boolean },
  ): X {
    const math = this.#math, { norm, head } = this.#loaded();
    const { y, rstd } = math.normalize(x, norm!);
    const { loss, kept } = math.headLoss(y, head!, { targets, keep });
    math.free(y);
    held.head = { x, rstd, kept, targets };
    return loss;
  }

  /** Gradient of the last block's output. */
  #headInputGrad(slot: HeadSlot<X>): X {
    const math = this.#math, { norm, head } = this.#loaded();
    const normed = math.renormalize(slot.x, norm!, slot.rstd);
    const dNormed = math.headInputGrad(normed, head!, { targets: slot.targets, kept: slot.kept });
    math.free(normed);
    const { dx, dGain } = math.normGrad(dNormed, { x: slot.x, gain: norm!, rstd: slot.rstd });
    slot.dGain = dGain;
    return dx;
  }

  /** One tile of the vocabulary after the other. */
  *#headWeightGrads(slot: HeadSlot<X>): Steps<X, void> {
    const math = this.#math, { norm, head } = this.#loaded(), { C } = this.shape;
    const name = this.#build.spec.tie_word_embeddings ? EMBEDDING_NAME : HEAD_NAME;
    const normed = math.renormalize(slot.x, norm!, slot.rstd);
    for (const rows of headTiles(this.shape)) {
      const gradient = math.headWeightGrad(normed, head!, { targets: slot.targets, kept: slot.kept, rows });
      yield { name, gradient, skipped: rows.from * C };
      math.free(gradient);
    }
    math.free(normed);
    assert(slot.dGain, "W follows B");
    yield { name: FINAL_NORM_NAME, gradient: slot.dGain };
  }

  /** Everything a slot holds; matrices that two layers share are freed once. */
  free({ blocks, head, dEmbedded }: StageSlot<X>): void {
    const all = new Set<X>(blocks.flatMap(({ x, kept }) => [x, ...Object.values(kept ?? {}) as X[]]));
    if (head) { for (const matrix of headMatrices(head)) all.add(matrix); }
    if (dEmbedded) all.add(dEmbedded);
    this.#math.free(...all);
  }

  /** The last block, which nothing needs any more. */
  #drop(blocks: BlockSlot<X>[]): void {
    this.free({ blocks: blocks.splice(-1) });
  }

  #trim(slot: BlockSlot<X>): void {
    this.#math.free(...Object.values(slot.kept ?? {}) as X[]);
    delete slot.kept;
  }

  #freeHead(head: HeadSlot<X>): void {
    this.#math.free(...headMatrices(head));
  }

  #loaded(): StageWeights<X, W> {
    assert(this.#weights, "a stage computes after its parameters were loaded");
    return this.#weights;
  }

  #block(layer: number): BlockWeights<X, W> {
    const block = this.#loaded().blocks[layer];
    assert(block, `the stage has no layer ${layer}`);
    return block;
  }
}

/** Views of a flat array in layout order, by tensor name; neighbours of one group are one view. */
export function layoutViews(build: StageBuild, flat: Float32Array) {
  const layout = stageLayout(build.spec, build.stage);
  return (first: string, last = first): Float32Array => {
    const from = findTensor(layout, first), to = findTensor(layout, last);
    assert(from && to, `the layout has no ${first} or no ${last}`);
    return flat.subarray(from.offset, to.offset + to.size);
  };
}
