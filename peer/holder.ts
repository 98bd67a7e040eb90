// What a peer holds and computes: for each of its stage instances the exact state, the engine, and the payloads of open
// rounds. It does what the core's jobs say, in order, and decides nothing about the protocol. No clock, no sockets; state
// files come through a function it is given. What must stay true: the state changes only in "load" and "apply".
import { batchOf, expectRound } from "./batches.ts";
import { checkEncoded } from "./codec/codec.ts";
import type { FrameOut, Job, JobResult } from "./core/peer_state.ts";
import { addInto, checkPart } from "./exact/accumulate.ts";
import { stateHash } from "./exact/hash.ts";
import { applyDelayed, basisOf } from "./exact/delay.ts";
import { applyTotal, passOver } from "./exact/optimizer.ts";
import { quantise } from "./exact/quantise.ts";
import type { StageState } from "./exact/state.ts";
import {
  beginSum,
  checkedInts,
  encodedOf,
  frameKey,
  type Held,
  intsOf,
  stepSum,
  takeBack,
  wholeState,
} from "./held.ts";
import {
  buildEngines,
  destroyEngines,
  engineOf,
  enginesOf,
  loadEngines,
  loadNewest,
} from "./held_engines.ts";
import {
  addParts,
  factsHash,
  install,
  logBytes,
  logTotal,
  makeTotal,
  seal,
  sumPayload,
  tiedSize,
} from "./held_sums.ts";
import { adoptInstance, buildOf, type HolderOptions, instanceKey, loadInstance } from "./load.ts";
import { isHere } from "./model/data.ts";
import { EMBEDDING_NAME, findTensor } from "./model/layout.ts";
import { learningRates } from "./model/schedule.ts";
import { DELAYED_BYTES_PER_PARAM, EXACT_BYTES_PER_PARAM } from "./model/stage_memory.ts";
import { encodeState } from "./model/state_file.ts";
import type { Pass } from "./wire/control.ts";
import { assert, ShoalError } from "./wire/errors.ts";
import { type FrameHeader, isSumCodec, isSumKind } from "./wire/frame.ts";
import type { Encoded, StagePlan, View } from "./wire/run.ts";
import { UNREAD_STATE } from "./wire/values.ts";
import { isDelayed, roundOrder } from "./wire/view.ts";

type OpJob = Job & { job: "op" };

export class Holder {
  #options: HolderOptions;
  #rates: Float64Array;
  #held = new Map<number, Held>();
  /** States that were fetched for a learner, by stage, until they are adopted. */
  #offers = new Map<number, Uint8Array>();
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
      if (isSumCodec(header.codec) || header.codec === "bytes") {
        return `a boundary tensor cannot be ${header.codec}`;
      }
      const checked = checkEncoded(encodedOf(header, payload));
      return checked.ok ? null : checked.reason;
    }
    if (header.kind === "tied" && findTensor(held.state.layout, EMBEDDING_NAME) === undefined) return null;
    const values = intsOf(header, payload);
    if (!values.ok) return values.reason;
    // A total is believed for its hash alone.
    if (header.kind === "total") return null;
    const size = header.kind === "tied" ? tiedSize(held) : header.cols;
    const part = { microBatches: header.set, values: values.value };
    const checked = checkPart(part, { microBatches: config.gradient_accumulation_steps, size });
    return checked.ok ? null : checked.reason;
  }

  /** Stores the payload of a frame that the core accepted. */
  keep(header: FrameHeader, payload: Uint8Array, from: string): void {
    const held = this.#held.get(header.toStage);
    if (held === undefined) return;
    const order = roundOrder(header.pass, header.step);
    const boundary = header.kind === "activation" || header.kind === "gradient";
    const value = boundary ? encodedOf(header, payload) : checkedInts(header, payload);
    const which = boundary ? header.microBatch : from;
    const overflow = !boundary && header.exponent !== 0;
    held.inbox.set(frameKey({ ...header, which }), { order, value, overflow });
  }

  /** A round begins for a stage: payloads of earlier ones are garbage from here on. */
  begin(stage: number, pass: Pass, step: number): void {
    const order = roundOrder(pass, step);
    const held = this.#held.get(stage);
    if (held === undefined) return;
    for (const box of [held.inbox, held.outbox]) {
      for (const [key, entry] of box) if (entry.order < order) box.delete(key);
    }
    // An evaluation that begins anew, under another view, owes nobody what was sent before.
    if (pass === "eval") held.outbox.clear();
    if (pass === "train") beginSum(held, step);
    expectRound(this.#options, held.plan, { self: this.#options.self, pass, step });
  }

  /** A fetched state, to be adopted by the job that follows. */
  offer(stage: number, bytes: Uint8Array): void {
    this.#offers.set(stage, bytes);
  }

  /** Lets go of one stage. */
  release(stage: number): void {
    const held = this.#held.get(stage);
    if (held !== undefined) destroyEngines(held);
    this.#held.delete(stage);
    this.#offers.delete(stage);
    this.#options.onHeld?.([...this.#held.values()].map(({ plan }) => plan));
  }

  /** Bytes kept for others: sent boundary tensors until their step is committed, and the log of totals. */
  retainedBytes(): number {
    let sum = 0;
    for (const held of this.#held.values()) {
      sum += logBytes(held);
      for (const { value } of held.outbox.values()) {
        sum += value instanceof Int32Array ? value.byteLength : value.payload.length;
      }
    }
    return sum;
  }

  async run(job: Job): Promise<JobResult> {
    switch (job.job) {
      case "load":
        return await this.#load(job);
      case "op":
        return await this.#op(job);
      case "sum":
        if (this.#at(job.stage).optimizer !== null) return {};
        makeTotal(this.#at(job.stage), job, this.#options.config);
        return {};
      case "reduce":
        addParts(this.#at(job.stage), job);
        return {};
      case "seal":
        return await this.#seal(job);
      case "install":
        return install(this.#at(job.stage), job, this.#options.config);
      case "engine":
        return await this.#engine(job);
      case "adopt":
        return this.#adopt(job);
      case "apply":
        return await this.#apply(job);
      case "export": {
        const state = await wholeState(this.#at(job.stage));
        return { file: { bytes: encodeState(state), hash: stateHash(state) } };
      }
      case "exact": {
        const held = this.#at(job.stage);
        await takeBack(held);
        return { hash: stateHash(held.state) };
      }
    }
  }

  /** Header fields and payload of a frame that the core wants sent. */
  frame(out: FrameOut): { header: Omit<FrameHeader, "incarnation">; payload: Uint8Array } {
    const held = this.#at(out.fromStage);
    const { to: _, recovery: __, ...base } = out;
    if (isSumKind(out.kind)) {
      const { payload, ...sum } = sumPayload(held, out, this.#options.config);
      return { header: { ...base, ...sum, rows: 1 }, payload };
    }
    const key = frameKey({ ...out, which: out.microBatch });
    const value = held.outbox.get(key)?.value;
    assert(value !== undefined && !(value instanceof Int32Array), `nothing to send under ${key}`);
    const { codec, exponent, rows, cols, payload } = value;
    return { header: { ...base, codec, exponent, rows, cols }, payload };
  }

  unload(): void {
    for (const held of this.#held.values()) destroyEngines(held);
    this.#held.clear();
  }

  /** Bytes held on the device and in the exact states. */
  memoryBytes(): number {
    let sum = 0;
    for (const held of this.#held.values()) {
      for (const engine of enginesOf(held)) {
        const { params, activations, scratch } = engine.memory();
        sum += params + activations + scratch;
      }
      const delayed = held.state.before === undefined ? 0 : DELAYED_BYTES_PER_PARAM;
      sum += held.state.params.length * (EXACT_BYTES_PER_PARAM + delayed);
    }
    return sum;
  }

  /** The exact states held, for checks and displays; not to be changed. */
  states(): StageState[] {
    return [...this.#held.values()].map((held) => held.state);
  }

  /** Milliseconds of the last job that went by until the corpus' tokens had come. */
  takeWaitMs(): number {
    const { corpus } = this.#options;
    return isHere(corpus) ? 0 : corpus.takeWaitMs();
  }

  /** Everything held of each stage, for checks; not to be changed. */
  instances(): readonly Held[] {
    return [...this.#held.values()];
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

  /** The configuration is that of the cut. */
  #follow({ config }: View): void {
    if (config === undefined) return;
    this.#options = { ...this.#options, config };
    this.#rates = learningRates(config);
  }

  async #load(job: Job & { job: "load" }): Promise<JobResult> {
    this.#follow(job.view);
    const old = [...this.#held.values()];
    const wanted = job.stages.map((stage) => job.view.stages[stage]!);
    // What is on a GPU is read once rather than fetched, if it may be what the source names.
    for (const held of job.source === null ? [] : old) {
      if (wanted.some((plan) => sameLayers(held.plan, plan))) await takeBack(held);
    }
    this.#held = new Map();
    const keys = new Set(wanted.map((plan) => instanceKey(plan, job.view, this.#options.self)));
    for (const held of old) if (!keys.has(held.key)) destroyEngines(held);
    for (const plan of wanted) {
      const reuse = old.find((held) => held.key === instanceKey(plan, job.view, this.#options.self)) ?? null;
      const before = old.find((held) => sameLayers(held.plan, plan))?.state ?? null;
      const request = { plan, view: job.view, source: job.source, reuse, before };
      this.#held.set(plan.index, await loadInstance(this.#options, request));
    }
    this.#options.onHeld?.(wanted);
    return {};
  }

  async #op(job: OpJob): Promise<JobResult> {
    const held = this.#at(job.stage);
    // Before any B, which may have to add a gradient of another slot to the sum.
    if (held.optimizer !== null && job.pass === "train" && held.sumIsStale) {
      await held.optimizer.begin();
      held.sumIsStale = false;
    }
    if (job.kind === "F") return await this.#forward(held, job);
    assert(job.slot !== null, "a backward operation needs a slot");
    if (job.kind === "B") return await this.#backward(held, job, job.slot);
    if (held.optimizer !== null) {
      await held.optimizer.addGradient(job.slot);
      return {};
    }
    const grad = await engineOf(held, job).weightGrad(job.slot);
    const { gradient_accumulation_steps: microBatches, reduce, seed } = this.#options.config;
    const options = { microBatches, reduce, seed, microBatch: job.microBatch, out: held.scratch };
    const result = quantise(grad, basisOf(held.state, job.step), options);
    const own = stepSum(held, job.step);
    addInto(own.sum, result.values);
    own.saturated += result.saturated;
    own.nonFinite += result.nonFinite;
    return {};
  }

  async #forward(held: Held, job: OpJob): Promise<JobResult> {
    const { plan } = held;
    const key = frameKey({ ...job, kind: "activation", which: job.microBatch });
    const order = roundOrder(job.pass, job.step);
    const asked = plan.embed || plan.head ? batchOf(this.#options, job) : null;
    const batch = asked instanceof Promise ? await asked : asked;
    const input = {
      ...(plan.embed && batch !== null ? { tokens: batch.tokens } : {}),
      ...(plan.head && batch !== null ? { targets: batch.targets } : {}),
      ...(plan.embed ? {} : { activation: this.#input(held, key) }),
    };
    const output = await engineOf(held, job).forward(job.slot, input);
    this.tokens += this.#options.config.batch_size * this.#options.spec.block_size;
    if (output.activation !== undefined) {
      held.outbox.set(key, { order, value: output.activation });
    }
    return output.loss === undefined ? {} : { loss: checkedLoss(output.loss, job) };
  }

  async #backward(held: Held, job: OpJob, slot: number): Promise<JobResult> {
    if (job.lossScale !== undefined) engineOf(held, job).scaleLoss?.(job.lossScale);
    const order = roundOrder(job.pass, job.step);
    const key = frameKey({ ...job, kind: "gradient", which: job.microBatch });
    const gradient = held.plan.head ? null : this.#input(held, key);
    const out = await engineOf(held, job).backward(slot, gradient);
    if (out !== null) held.outbox.set(key, { order, value: out });
    return {};
  }

  #input(held: Held, key: string): Encoded {
    const value = held.inbox.get(key)?.value;
    assert(value !== undefined && !(value instanceof Int32Array), `payload ${key} is not here`);
    held.inbox.delete(key);
    return value;
  }

  async #engine(job: Job & { job: "engine" }): Promise<JobResult> {
    const held = this.#at(job.stage);
    const create: HolderOptions["createEngine"] = (build) => this.#options.createEngine(build);
    const build = buildOf(this.#options, job.plan, job.view);
    await buildEngines(held, build, { delayed: isDelayed(job.view), create });
    await loadEngines(held);
    return {};
  }

  #adopt(job: Job & { job: "adopt" }): JobResult {
    this.#follow(job.view);
    const bytes = this.#offers.get(job.stage);
    this.#offers.delete(job.stage);
    const held = bytes && adoptInstance(this.#options, { ...job, bytes });
    if (!held || held.state.step !== job.step) return { hash: "" };
    const hash = stateHash(held.state);
    if (hash === job.file.hash) this.#held.set(job.stage, held);
    return { hash };
  }

  async #seal(job: Job & { job: "seal" }): Promise<JobResult> {
    const held = this.#at(job.stage);
    const { config } = this.#options;
    if (held.optimizer === null) return seal(held, job, config);
    const facts = await held.optimizer.facts(config.gradient_accumulation_steps);
    return { ...facts, hash: factsHash(job.step, facts) };
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
    const options = { microBatches, lr, gradNormSq: job.gradNormSq, config };
    if (held.optimizer !== null) {
      if (job.skip === true) await held.optimizer.passOver(job.step, options);
      else await held.optimizer.apply(job.step, options);
      held.state.step++;
      return { hash: UNREAD_STATE };
    }
    if (job.skip === true) passOver(held.state, held.total, options);
    else if (held.state.before !== undefined) applyDelayed(held.state, held.total, options);
    else applyTotal(held.state, held.total, options);
    if (job.upload) await loadNewest(held);
    logTotal(held, job);
    return { hash: stateHash(held.state) };
  }
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
