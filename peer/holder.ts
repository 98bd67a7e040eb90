// What a peer holds and computes: for each of its stage instances the exact state, the engine, and the payloads of open
// rounds. It does what the core's jobs say, in order, and decides nothing about the protocol. No clock, no sockets; state
// files come through a function it is given. What must stay true: the state changes only in "load" and "apply".
import { checkEncoded } from "./codec/codec.ts";
import type { Job, JobResult } from "./core/peer_state.ts";
import type { FrameOut } from "./core/peer_state.ts";
import type { StageEngine } from "./engine/engine.ts";
import { addInto, checkPart } from "./exact/accumulate.ts";
import { stateHash, totalHash } from "./exact/hash.ts";
import { applyTotal, totalNormSq } from "./exact/optimizer.ts";
import { quantise } from "./exact/quantise.ts";
import { tensorSlice } from "./exact/state.ts";
import { type HolderOptions, instanceKey, loadInstance } from "./load.ts";
import { batchOffsets, sliceBatch } from "./model/data.ts";
import { EMBEDDING_NAME, findTensor } from "./model/layout.ts";
import { learningRates } from "./model/schedule.ts";
import { encodeState } from "./model/state_file.ts";
import type { Pass } from "./wire/control.ts";
import { assert, ShoalError } from "./wire/errors.ts";
import type { FrameHeader } from "./wire/frame.ts";
import type { Encoded, StagePlan } from "./wire/run.ts";
import type { StageState } from "./exact/state.ts";
import { roundOrder } from "./wire/view.ts";

/** One stage instance with everything that belongs to it. */
export interface Held {
  key: string;
  plan: StagePlan;
  /** Null for a shadow, which keeps the state and computes nothing. */
  engine: StageEngine | null;
  state: StageState;
  /** Sum of the own micro-batches of the open step, and of all once summed. */
  sum: Int32Array;
  scratch: Int32Array;
  saturated: number;
  nonFinite: number;
  /** Payloads of open rounds by frameKey(). */
  inbox: Map<string, { order: number; value: Encoded | Int32Array }>;
  outbox: Map<string, { order: number; value: Encoded | Int32Array }>;
}

/** Weights, two moments, the step's sum and the scratch of quantising: f32 or i32 each. */
const EXACT_BYTES_PER_PARAM = 20;

type OpJob = Job & { job: "op" };

export class Holder {
  readonly #options: HolderOptions;
  readonly #rates: Float64Array;
  #held = new Map<number, Held>();
  /** Engine operations so far: milliseconds are the shell's business, counts are ours. */
  tokens = 0;

  constructor(options: HolderOptions) {
    this.#options = options;
    this.#rates = learningRates(options.config);
  }

  /** Why a payload is refused although its frame is well-formed; null if it is fine. */
  check(header: FrameHeader, payload: Uint8Array): string | null {
    const { config } = this.#options;
    const held = this.#held.get(header.toStage);
    // Without the instance the core refuses the frame; there is nothing to check it against.
    if (held === undefined) return null;
    if (header.kind === "activation" || header.kind === "gradient") {
      if (header.codec === "int32") return "a boundary tensor cannot be int32";
      const checked = checkEncoded(encodedOf(header, payload));
      return checked.ok ? null : checked.reason;
    }
    if (header.kind === "tied" && findTensor(held.state.layout, EMBEDDING_NAME) === undefined) return null;
    const size = header.kind === "part" ? held.state.layout.size : tiedSize(held);
    const part = { microBatches: header.set, values: intsOf(payload) };
    const checked = checkPart(part, { microBatches: config.gradient_accumulation_steps, size });
    return checked.ok ? null : checked.reason;
  }

  /** Stores the payload of a frame that the core accepted. */
  keep(header: FrameHeader, payload: Uint8Array, from: string): void {
    const held = this.#held.get(header.toStage);
    if (held === undefined) return;
    const order = roundOrder(header.pass, header.step);
    const boundary = header.kind === "activation" || header.kind === "gradient";
    const value = boundary ? encodedOf(header, payload) : intsOf(payload);
    held.inbox.set(frameKey(order, header.kind, boundary ? header.microBatch : from), { order, value });
  }

  /** Payloads of earlier rounds are garbage from here on. */
  round(pass: Pass, step: number): void {
    const order = roundOrder(pass, step);
    for (const held of this.#held.values()) {
      for (const box of [held.inbox, held.outbox]) {
        for (const [key, entry] of box) if (entry.order < order) box.delete(key);
      }
      if (pass === "train") Object.assign(held, { saturated: 0, nonFinite: 0 });
      if (pass === "train") held.sum.fill(0);
    }
  }

  async run(job: Job): Promise<JobResult> {
    switch (job.job) {
      case "load":
        return await this.#load(job);
      case "op":
        return await this.#op(job);
      case "sum":
        return this.#sum(job);
      case "seal":
        return this.#seal(job);
      case "apply":
        return await this.#apply(job);
      case "export": {
        const { state } = this.#at(job.stage);
        return { file: { bytes: encodeState(state), hash: stateHash(state) } };
      }
    }
  }

  /** Header fields and payload of a frame that the core wants sent. */
  frame(out: FrameOut): { header: Omit<FrameHeader, "incarnation">; payload: Uint8Array } {
    const held = this.#at(out.fromStage);
    const { to: _, ...base } = out;
    if (out.kind === "part" || out.kind === "tied") {
      const all = out.kind === "part" ? held.sum : held.sum.subarray(...tiedRange(held));
      const payload = new Uint8Array(all.slice().buffer);
      return { header: { ...base, codec: "int32", exponent: 0, rows: 1, cols: all.length }, payload };
    }
    const key = frameKey(roundOrder(out.pass, out.step), out.kind, out.microBatch);
    const value = held.outbox.get(key)?.value;
    assert(value !== undefined && !(value instanceof Int32Array), `nothing to send under ${key}`);
    held.outbox.delete(key);
    const { codec, exponent, rows, cols, payload } = value;
    return { header: { ...base, codec, exponent, rows, cols }, payload };
  }

  unload(): void {
    for (const held of this.#held.values()) held.engine?.destroy();
    this.#held.clear();
  }

  /** Bytes held on the device and in the exact states. */
  memoryBytes(): number {
    let sum = 0;
    for (const { engine, state } of this.#held.values()) {
      const { params, activations, scratch } = engine?.memory() ?? { params: 0, activations: 0, scratch: 0 };
      sum += params + activations + scratch + state.layout.size * EXACT_BYTES_PER_PARAM;
    }
    return sum;
  }

  /** The exact states held, for checks and displays; not to be changed. */
  states(): StageState[] {
    return [...this.#held.values()].map((held) => held.state);
  }

  engineNames(): string[] {
    return [
      ...new Set([...this.#held.values()].flatMap((held) => held.engine === null ? [] : [held.engine.name])),
    ];
  }

  #at(stage: number): Held {
    const held = this.#held.get(stage);
    assert(held !== undefined, `stage ${stage} is not held`);
    return held;
  }

  async #load(job: Job & { job: "load" }): Promise<JobResult> {
    const old = [...this.#held.values()];
    this.#held = new Map();
    const wanted = job.stages.map((stage) => job.view.stages[stage]!);
    const keys = new Set(wanted.map((plan) => instanceKey(plan, job.view, this.#options.self)));
    for (const held of old) if (!keys.has(held.key)) held.engine?.destroy();
    for (const plan of wanted) {
      const reuse = old.find((held) => held.key === instanceKey(plan, job.view, this.#options.self)) ?? null;
      const before = old.find((held) => sameLayers(held.plan, plan))?.state ?? null;
      const request = { plan, view: job.view, source: job.source, reuse, before };
      this.#held.set(plan.index, await loadInstance(this.#options, request));
    }
    return {};
  }

  async #op(job: OpJob): Promise<JobResult> {
    const held = this.#at(job.stage);
    if (job.kind === "F") return await this.#forward(held, job);
    assert(job.slot !== null, "a backward operation needs a slot");
    if (job.kind === "B") return await this.#backward(held, job, job.slot);
    const grad = await engineOf(held).weightGrad(job.slot);
    const options = { microBatches: this.#options.config.gradient_accumulation_steps, out: held.scratch };
    const result = quantise(grad, held.state, options);
    addInto(held.sum, result.values);
    held.saturated += result.saturated;
    held.nonFinite += result.nonFinite;
    return {};
  }

  async #forward(held: Held, job: OpJob): Promise<JobResult> {
    const { plan } = held;
    const order = roundOrder(job.pass, job.step);
    const batch = plan.embed || plan.head ? this.#batch(job) : null;
    const input = {
      ...(plan.embed && batch !== null ? { tokens: batch.tokens } : {}),
      ...(plan.head && batch !== null ? { targets: batch.targets } : {}),
      ...(plan.embed ? {} : { activation: this.#input(held, frameKey(order, "activation", job.microBatch)) }),
    };
    const output = await engineOf(held).forward(job.slot, input);
    this.tokens += this.#options.config.batch_size * this.#options.spec.block_size;
    if (output.activation !== undefined) {
      held.outbox.set(frameKey(order, "activation", job.microBatch), { order, value: output.activation });
    }
    return output.loss === undefined ? {} : { loss: checkedLoss(output.loss, job) };
  }

  async #backward(held: Held, job: OpJob, slot: number): Promise<JobResult> {
    const order = roundOrder(job.pass, job.step);
    const key = frameKey(order, "gradient", job.microBatch);
    const gradient = held.plan.head ? null : this.#input(held, key);
    const out = await engineOf(held).backward(slot, gradient);
    if (out !== null) held.outbox.set(key, { order, value: out });
    return {};
  }

  #input(held: Held, key: string): Encoded {
    const value = held.inbox.get(key)?.value;
    assert(value !== undefined && !(value instanceof Int32Array), `payload ${key} is not here`);
    held.inbox.delete(key);
    return value;
  }

  #batch(job: OpJob) {
    const { config, spec, corpus } = this.#options;
    const split = job.pass === "train" ? "train" as const : "val" as const;
    const shape = { split, tokens: corpus.length, blockSize: spec.block_size, batchSize: config.batch_size };
    // Every evaluation reads the same micro-batches, so that its losses compare.
    const step = job.pass === "train" ? job.step : 0;
    return sliceBatch(corpus, batchOffsets(config.seed, step, job.microBatch, shape), spec.block_size);
  }

  #sum(job: Job & { job: "sum" }): JobResult {
    const held = this.#at(job.stage);
    const order = roundOrder("train", job.step);
    for (const from of job.parts) {
      const part = held.inbox.get(frameKey(order, "part", from))?.value;
      assert(part instanceof Int32Array, `the part of ${from} is not here`);
      addInto(held.sum, part);
    }
    return {};
  }

  #seal(job: Job & { job: "seal" }): JobResult {
    const held = this.#at(job.stage);
    const { config } = this.#options;
    if (job.tied) {
      const order = roundOrder("train", job.step);
      const entry = [...held.inbox].find(([key]) => key.startsWith(`${order}/tied/`))?.[1];
      assert(entry?.value instanceof Int32Array, "the tied sum is not here");
      addInto(held.sum.subarray(...tiedRange(held)), entry.value);
    }
    const skip = new Set(job.tied && !job.countTied ? [EMBEDDING_NAME] : []);
    const options = { microBatches: config.gradient_accumulation_steps, skip };
    const gradNormSq = totalNormSq(held.state, held.sum, options);
    const { saturated, nonFinite } = held;
    return { hash: totalHash(held.sum), gradNormSq, saturated, nonFinite };
  }

  async #apply(job: Job & { job: "apply" }): Promise<JobResult> {
    const held = this.#at(job.stage);
    const { config } = this.#options;
    const lr = this.#rates[job.step];
    assert(
      lr !== undefined && held.state.step === job.step,
      `step ${job.step} on a state of ${held.state.step}`,
    );
    const microBatches = config.gradient_accumulation_steps;
    applyTotal(held.state, held.sum, { microBatches, lr, gradNormSq: job.gradNormSq, config });
    await held.engine?.load(held.state.params);
    return { hash: stateHash(held.state) };
  }
}

function engineOf(held: Held): StageEngine {
  assert(held.engine !== null, `stage ${held.plan.index} is a shadow here and has no engine`);
  return held.engine;
}

function frameKey(order: number, kind: FrameHeader["kind"], which: number | string): string {
  return `${order}/${kind}/${which}`;
}

function encodedOf(header: FrameHeader, payload: Uint8Array): Encoded {
  const { codec, exponent, rows, cols } = header;
  if (codec === "int32") throw new ShoalError("bad-frame", "a boundary tensor cannot be int32");
  return { codec, exponent, rows, cols, payload };
}

function intsOf(payload: Uint8Array): Int32Array {
  return new Int32Array(payload.slice().buffer);
}

function tiedRange(held: Held): [number, number] {
  const { start, end } = tensorSlice(held.state.layout, EMBEDDING_NAME);
  return [start, end];
}

function tiedSize(held: Held): number {
  const [start, end] = tiedRange(held);
  return end - start;
}

function sameLayers(a: StagePlan, b: StagePlan): boolean {
  return a.firstLayer === b.firstLayer && a.endLayer === b.endLayer && a.embed === b.embed &&
    a.head === b.head;
}

function checkedLoss(loss: number, job: OpJob): number {
  if (Number.isFinite(loss)) return loss;
  throw new ShoalError(
    "internal",
    `loss ${loss} in step ${job.step}: training diverged; lower learning_rate`,
  );
}
