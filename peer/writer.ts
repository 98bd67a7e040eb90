// A peer's part in texts that the stages of a run write together: copies of its stages' weights at one step, keys and values of
// the texts, rows in and rows on. It decides nothing: which peers, which step and which tokens is the coordinator's business. What
// must stay true: nothing here touches a training state or ends the session, and training hardly waits for it.
import { type DrawOptions, drawToken } from "./engine/sampler_draw.ts";
import { cacheBytes, type Pieces, type StageCache, StageSampler } from "./engine/sampler_stage.ts";
import { type Held, wholeState } from "./held.ts";
import { baseSpec, stageLayout } from "./model/layout.ts";
import { type RandomStream, randomStream } from "./model/random.ts";
import { type Clock, systemClock } from "./net/clock.ts";
import type { LinkHost } from "./net/link.ts";
import type { PeerMessage } from "./wire/control.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";
import { encodeFrame, type FrameHeader, TEXT_ROWS_MAX } from "./wire/frame.ts";
import type { IceServer, ModelSpec, StageSpec } from "./wire/run.ts";
import { TEXTS_PER_EDITION, type WriteOrder } from "./wire/texts.ts";

/** Copies of weights at a time: a new edition may begin before the old one's end is heard. */
const SEATS_MAX = 8;
/** Pieces that wait at one stage; the coordinator has fewer under way. */
const PIECES_MAX = 64;
/** A piece of work between two looks at what else there is to do. */
const SLICE_MS = 2;
/** Of the time that a job of the training took, so much goes into texts after it. */
const SHARE = 0.2;
/** A copy that nobody has asked anything for so long is forgotten: its coordinator is another one by now. */
const IDLE_MS = 300_000;
/** Behind boundary tensors and partial sums. */
const PRIORITY = 2;
const REASON_CHARS_MAX = 512;

type Open = Extract<WriteOrder, { order: "open" }>;

/** @param params of what is trained; taken over */
export type WeightsOf = (stage: StageSpec, params: Float32Array) => Promise<Float32Array>;

export interface WriterOptions {
  self: string;
  incarnation: number;
  spec: ModelSpec;
  iceServers: IceServer[];
  host: Pick<LinkHost, "connect" | "send">;
  say(message: PeerMessage): void;
  /** Bytes of the offered memory that nothing takes now. */
  room(): number;
  /** What is computed with, of a stage with these parameters: with adapters the base and they together. Default: they are it. */
  weightsOf?: WeightsOf | undefined;
  /** False while its owner wants it to do nothing. */
  mayWrite(): boolean;
  /** An operation of the training is under way. */
  busy(): boolean;
  /** What its owner allows of the processor; absent: everything. */
  gate?: { before(): Promise<void> | null; after(busyMs: number): void } | undefined;
  /** Default: the system's clock. */
  clock?: Clock;
}

interface Text {
  id: number;
  cache: StageCache;
  /** Position of the next row that may come. */
  due: number;
  /** In the last stage: of the last row, while it is not known how to draw. */
  undrawn: Float32Array | null;
}

interface Draw extends DrawOptions {
  text: number;
  next: RandomStream;
}

interface Piece {
  text: number;
  slot: number;
  position: number;
  input: readonly number[] | Float32Array;
  draw: boolean;
}

/** A stage of one edition. */
interface Seat {
  order: Open;
  stage: StageSpec;
  bytes: number;
  /** The state has come to the edition's step, and is copied. */
  copied: boolean;
  /** Null until the copy can be computed with. */
  sampler: StageSampler | null;
  /** By slot. */
  texts: Map<number, Text>;
  draws: Map<number, Draw>;
  queue: Piece[];
  heardAt: number;
}

interface Work {
  seat: Seat;
  work: Pieces<void>;
}

export class Writer {
  readonly #o: WriterOptions;
  readonly #clock: Clock;
  readonly #seats = new Map<string, Seat>();
  /** What is being computed, and of which seat. */
  #now: Work | null = null;
  #scheduled = false;

  constructor(options: WriterOptions) {
    this.#o = options;
    this.#clock = options.clock ?? systemClock;
  }

  /** Bytes of the copies and of what belongs to texts. */
  get bytes(): number {
    return [...this.#seats.values()].reduce((sum, seat) => sum + seat.bytes, 0);
  }

  /** Whether there are texts at all. */
  get active(): boolean {
    return this.#seats.size > 0;
  }

  /** Whether settle() has something to do, now or later. */
  get waits(): boolean {
    return [...this.#seats.values()].some(({ copied }) => !copied);
  }

  /** Whether rows of a text travel between this peer and that one. */
  needs(peer: string): boolean {
    return [...this.#seats.values()].some(({ order: { from, to } }) => from === peer || to === peer);
  }

  /** What the coordinator says. After *open*, and after every job, settle() is due. */
  order(order: WriteOrder): void {
    if (order.order === "open") return this.#open(order);
    for (const [key, seat] of this.#seats) {
      if (seat.order.edition !== order.edition) continue;
      seat.heardAt = this.#clock.now();
      if (order.order === "close") this.#drop(key);
      else if (order.order === "drop") this.#forget(seat, order.text);
      else if (order.order === "text") this.#describe(seat, order);
      else if (seat.stage.embed) this.#take(seat, { ...order, input: order.tokens });
    }
  }

  /** Between two jobs: copies the weights of stages whose state has come to the step that is wanted. */
  async settle(held: readonly Held[]): Promise<void> {
    for (const [key, seat] of this.#seats) {
      const { firstLayer, endLayer, step, stage } = seat.order;
      const own = !seat.copied
        ? held.find(({ plan }) =>
          plan.index === stage && plan.firstLayer === firstLayer && plan.endLayer === endLayer
        )
        : undefined;
      if (own === undefined || own.state.step < step) continue;
      if (own.state.step > step) this.#fail(key, `its state is of step ${own.state.step} already`);
      else await this.#copy(key, seat, own);
    }
  }

  /** A frame of kind text. */
  receive(from: string, header: FrameHeader, payload: Uint8Array): void {
    const { step: edition, toStage, fromStage, gen: text, cut: position, cols, microBatch } = header;
    const seat = this.#seats.get(keyOf(edition, toStage));
    const right = seat?.order.from === from && fromStage === toStage - 1 && cols === this.#o.spec.n_embd;
    if (!right) return;
    const input = new Float32Array(payload.slice().buffer);
    this.#take(seat, { text, slot: microBatch >> 1, position, input, draw: (microBatch & 1) === 1 });
  }

  /** What was sent over a link that is gone may be lost. */
  link(peer: string, open: boolean): void {
    for (const [key, { order }] of open ? [] : this.#seats) {
      if (order.from === peer || order.to === peer) this.#fail(key, `its link to ${peer} is gone`);
    }
  }

  /** A job of the training has taken so long; a part of that goes into texts now. Returns how long it was, ms. */
  afterJob(ms: number): number {
    const took = this.#slice(ms * SHARE);
    if (this.#next() !== null) this.#soon();
    return took;
  }

  tick(): void {
    for (const [key, seat] of this.#seats) if (this.#clock.now() - seat.heardAt > IDLE_MS) this.#drop(key);
  }

  /** Forgets everything. */
  clear(): void {
    for (const key of [...this.#seats.keys()]) this.#drop(key);
  }

  #open(order: Open): void {
    const { edition, stage: index, firstLayer, endLayer, from, to } = order;
    const { spec, host, self, iceServers, say } = this.#o;
    const key = keyOf(edition, index);
    const stage = { index, firstLayer, endLayer, embed: firstLayer === 0, head: endLayer === spec.n_layer };
    const refusal = this.#refusal(stage);
    if (refusal !== null) {
      return say({ type: "write-failed", edition, stage: index, reason: refusal });
    }
    const fresh = { copied: false, sampler: null, texts: new Map(), draws: new Map(), queue: [] };
    this.#seats.set(key, { order, stage, bytes: bytesOf(spec, stage), ...fresh, heardAt: this.#clock.now() });
    for (const peer of [from, to]) {
      if (peer !== null && peer !== self) host.connect(peer, { initiator: self < peer, iceServers });
    }
  }

  #refusal(stage: StageSpec): string | null {
    if (!this.#o.mayWrite()) return "its owner has paused it";
    if (this.#seats.size >= SEATS_MAX) return `it holds ${SEATS_MAX} copies already`;
    const [needed, left] = [bytesOf(this.#o.spec, stage), this.#o.room()];
    if (needed <= left) return null;
    const [wanted, there] = [Math.ceil(needed / 2 ** 20), Math.max(0, Math.floor(left / 2 ** 20))];
    return `a copy of stage ${stage.index + 1} needs ${wanted} MiB, and ${there} MiB of its memory are left`;
  }

  async #copy(key: string, seat: Seat, held: Held): Promise<void> {
    try {
      const { params } = await wholeState(held);
      if (this.#seats.get(key) !== seat) return;
      // A state on a GPU was read into an array of its own; the exact core's goes on changing.
      seat.copied = true;
      void this.#ready(key, seat, held.optimizer === null ? params.slice() : params);
    } catch (error) {
      this.#fail(key, messageOf(error));
    }
  }

  /** What a base has to be fetched for does not hold up the training. */
  async #ready(key: string, seat: Seat, params: Float32Array): Promise<void> {
    const { spec, weightsOf, say } = this.#o;
    try {
      const weights = weightsOf === undefined ? params : await weightsOf(seat.stage, params);
      if (this.#seats.get(key) !== seat) return;
      seat.sampler = new StageSampler(baseSpec(spec), seat.stage, weights);
    } catch (error) {
      return this.#fail(key, messageOf(error));
    }
    say({ type: "write-open", edition: seat.order.edition, stage: seat.order.stage });
    this.#soon();
  }

  #describe(seat: Seat, order: Extract<WriteOrder, { order: "text" }>): void {
    const { text, slot, seed, drawn, temperature, topK, topP } = order;
    if (!seat.stage.head || !isSlot(slot)) return;
    const next = randomStream([seed]);
    for (let i = 0; i < drawn; i++) next();
    seat.draws.set(slot, { text, next, temperature, topK, topP });
    this.#draw(seat, slot);
  }

  #forget(seat: Seat, id: number): void {
    for (const [slot, text] of seat.texts) if (text.id === id) seat.texts.delete(slot);
    for (const [slot, draw] of seat.draws) if (draw.text === id) seat.draws.delete(slot);
    seat.queue = seat.queue.filter((piece) => piece.text !== id);
  }

  /** Rows have come; whatever does not follow what came before is left alone. */
  #take(seat: Seat, { text: id, slot, position, input, draw }: Piece): void {
    const { spec } = this.#o;
    const rows = input instanceof Float32Array ? input.length / spec.n_embd : input.length;
    const known = seat.texts.get(slot)?.id === id ? seat.texts.get(slot) : undefined;
    const fits = isSlot(slot) && rows > 0 && rows <= TEXT_ROWS_MAX && position + rows <= spec.block_size &&
      (position === 0 || position === known?.due) && areTokens(input, spec.vocab_size);
    if (seat.sampler === null || !fits || seat.queue.length >= PIECES_MAX) return;
    // A cache is written from its beginning on, so a text may have that of the one before it in its slot.
    const cache = seat.texts.get(slot)?.cache ?? seat.sampler.open();
    const text = known ?? { id, cache, due: 0, undrawn: null };
    text.due = position + rows;
    seat.texts.set(slot, text);
    seat.queue.push({ text: id, slot, position, input, draw });
    seat.heardAt = this.#clock.now();
    this.#soon();
  }

  #soon(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    this.#clock.after(0, () => void this.#turn());
  }

  /** Only while the training waits for something: during a job nothing is begun, and after it afterJob() is due. */
  async #turn(): Promise<void> {
    const { gate, busy } = this.#o;
    await gate?.before();
    this.#scheduled = false;
    if (busy()) return;
    const took = this.#slice(SLICE_MS);
    gate?.after(took);
    if (this.#next() !== null) this.#soon();
  }

  /** Works for about so long; returns how long it was. */
  #slice(ms: number): number {
    if (this.#seats.size === 0) return 0;
    const begun = this.#clock.now();
    let took = 0;
    for (let now = this.#next(); now !== null && took < ms; now = this.#next()) {
      if (now.work.next().done) this.#now = null;
      took = this.#clock.now() - begun;
    }
    return took;
  }

  #next(): Work | null {
    if (this.#now !== null) return this.#now;
    for (const seat of this.#seats.values()) {
      const piece = seat.queue.shift();
      if (piece !== undefined) return this.#now = { seat, work: this.#compute(seat, piece) };
    }
    return null;
  }

  *#compute(seat: Seat, piece: Piece): Pieces<void> {
    const { sampler, texts, order: { edition, to } } = seat;
    const text = texts.get(piece.slot);
    if (sampler === null || text?.id !== piece.text) return;
    const rows = yield* sampler.read(text.cache, piece.input, piece.position);
    if (to !== null) return this.#pass(seat, piece, rows);
    const position = text.cache.length;
    if (!piece.draw) return this.#o.say({ type: "wrote", edition, text: text.id, position });
    text.undrawn = yield* sampler.logits(rows.subarray(-this.#o.spec.n_embd));
    this.#draw(seat, piece.slot);
  }

  /** Once both the logits and how to draw are here: they come by different ways. */
  #draw(seat: Seat, slot: number): void {
    const [text, draw] = [seat.texts.get(slot), seat.draws.get(slot)];
    if (text === undefined || text.undrawn === null || draw?.text !== text.id) return;
    const token = drawToken(text.undrawn, draw, draw.next);
    text.undrawn = null;
    const about = { edition: seat.order.edition, text: text.id, position: text.cache.length };
    this.#o.say({ type: "wrote", ...about, token });
  }

  #pass(seat: Seat, piece: Piece, rows: Float32Array): void {
    const { edition, stage, to } = seat.order;
    const header = headerOf(seat.order, piece, { cols: this.#o.spec.n_embd, values: rows.length });
    const payload = new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
    const whole = { ...header, incarnation: this.#o.incarnation };
    if (to === this.#o.self) return this.receive(to, whole, payload);
    try {
      this.#o.host.send(to!, encodeFrame(whole, payload), PRIORITY);
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      this.#fail(keyOf(edition, stage), error.message);
    }
  }

  #fail(key: string, reason: string): void {
    const seat = this.#seats.get(key);
    if (seat === undefined) return;
    const { edition, stage } = seat.order;
    this.#drop(key);
    this.#o.say({ type: "write-failed", edition, stage, reason: reason.slice(0, REASON_CHARS_MAX) });
  }

  #drop(key: string): void {
    if (this.#now?.seat === this.#seats.get(key)) this.#now = null;
    this.#seats.delete(key);
  }
}

function keyOf(edition: number, stage: number): string {
  return `${edition}/${stage}`;
}

/** Of a copy and of all texts that it may serve at a time. */
function bytesOf(spec: ModelSpec, stage: StageSpec): number {
  const weights = stageLayout(baseSpec(spec), stage).size * Float32Array.BYTES_PER_ELEMENT;
  return weights + TEXTS_PER_EDITION * cacheBytes(spec, stage);
}

function isSlot(slot: number): boolean {
  return Number.isInteger(slot) && slot >= 0 && slot < TEXTS_PER_EDITION;
}

function areTokens(input: readonly number[] | Float32Array, vocabSize: number): boolean {
  if (input instanceof Float32Array) return true;
  return input.every((token) => Number.isInteger(token) && token >= 0 && token < vocabSize);
}

/** The place of rows in their text stands in fields that speak of rounds elsewhere. */
function headerOf(
  { edition, stage }: Open,
  { text, slot, position, draw }: Piece,
  { cols, values }: { cols: number; values: number },
): Omit<FrameHeader, "incarnation"> {
  return {
    ...{ kind: "text", codec: "raw32", pass: "train", exponent: 0, set: [] },
    ...{ step: edition, gen: text, cut: position, microBatch: 2 * slot + (draw ? 1 : 0) },
    ...{ fromStage: stage, toStage: stage + 1, rows: values / cols, cols },
  };
}
