// Which tokens a step's sequences contain: a pure function of (seed, step, number in the step) over the corpus.
// Not loading or tokenising. Data order must never depend on peers, plans, failures or how a step is cut into micro-batches;
// nothing here keeps state.
import { ShoalError } from "../wire/errors.ts";
import { randomStream, uniformBelow } from "./random.ts";

/** A tokenised corpus, in as few bytes per token as its vocabulary needs. */
export type Corpus = Uint8Array | Uint16Array | Uint32Array;
export type BytesPerToken = 1 | 2 | 4;

/** Tokens from the first to before the second. */
export interface TokenRange {
  begin: number;
  end: number;
}

/** A corpus that lies elsewhere and is asked for by ranges; where that is, is nothing to the order of the data. */
export interface TokenSource {
  /** Tokens in the whole corpus. */
  readonly length: number;
  /** @throws {ShoalError} bad-corpus if they cannot be had, or are not those that were announced. */
  read(range: TokenRange): Promise<Corpus>;
  /** What will be read soon, so that it may be fetched meanwhile; nothing follows from it. */
  expect(ranges: readonly TokenRange[]): void;
  /** Milliseconds for which tokens were waited for since it was asked last: no work of whoever reads them. */
  takeWaitMs(): number;
}
export type Split = "train" | "val";

export interface BatchOptions {
  split: Split;
  /** Tokens in the whole corpus. */
  tokens: number;
  /** T: tokens in a sequence. */
  blockSize: number;
  /** B: sequences in a micro-batch. */
  batchSize: number;
}

/** Row-major [B, T]; targets are the tokens that follow. */
export interface Batch {
  tokens: Uint32Array;
  targets: Uint32Array;
}

export function bytesPerToken(vocabSize: number): BytesPerToken {
  return vocabSize <= 256 ? 1 : vocabSize <= 65_536 ? 2 : 4;
}

/** Tokens below `vocabSize` as a corpus. */
export function corpusOf(tokens: ArrayLike<number>, vocabSize: number): Corpus {
  const width = bytesPerToken(vocabSize);
  if (width === 1) return Uint8Array.from(tokens);
  return width === 2 ? Uint16Array.from(tokens) : Uint32Array.from(tokens);
}

/** Bytes of a corpus, such as came over the network, as its tokens; little-endian. */
export function corpusView(bytes: ArrayBuffer, width: BytesPerToken): Corpus {
  if (width === 1) return new Uint8Array(bytes);
  return width === 2 ? new Uint16Array(bytes) : new Uint32Array(bytes);
}

/** Separates this use of the seed from initialisation. */
const DATA_DOMAIN = 0x64617461;

/** The first 90 % of the corpus train, the last 10 % validate: [begin, end) in tokens. */
export function splitRange(tokens: number, split: Split): TokenRange {
  const border = Math.floor(tokens * 9 / 10);
  return split === "train" ? { begin: 0, end: border } : { begin: border, end: tokens };
}

/** Start positions at which T tokens and the last one's target stay inside the split; 0 if it is too short. */
export function positionCount(options: Omit<BatchOptions, "batchSize">): number {
  const { begin, end } = splitRange(options.tokens, options.split);
  return Math.max(0, end - begin - options.blockSize);
}

/**
 * Start positions of the B sequences of a micro-batch, uniform with replacement inside the split. They are the sequences
 * microBatch * B to microBatch * B + B - 1 of the step, each with a stream of its own, so that a step of so many sequences
 * reads the same ones in the same order whatever B is.
 * @throws {ShoalError} bad-corpus if the split is shorter than blockSize + 1 tokens.
 */
export function batchOffsets(
  seed: number,
  step: number,
  microBatch: number,
  options: BatchOptions,
): Uint32Array {
  const { begin, end } = splitRange(options.tokens, options.split);
  const positions = positionCount(options);
  if (positions < 1) {
    throw new ShoalError(
      "bad-corpus",
      `the ${options.split} split has ${end - begin} tokens, too few for block_size ${options.blockSize}; ` +
        "use a longer corpus or a smaller block_size",
    );
  }
  const first = microBatch * options.batchSize;
  const key = [DATA_DOMAIN, seed, options.split === "train" ? 0 : 1, step];
  return Uint32Array.from({ length: options.batchSize }, (_, row) => {
    return begin + uniformBelow(randomStream([...key, first + row]), positions);
  });
}

/** Copies T tokens and T targets per offset. @throws {ShoalError} bad-corpus if a sequence leaves the corpus. */
export function sliceBatch(corpus: Corpus, offsets: Uint32Array, blockSize: number): Batch {
  const tokens = new Uint32Array(offsets.length * blockSize);
  const targets = new Uint32Array(offsets.length * blockSize);
  offsets.forEach((offset, row) => {
    if (offset + blockSize + 1 > corpus.length) {
      throw new ShoalError(
        "bad-corpus",
        `a sequence at token ${offset} of length ${blockSize} leaves the corpus of ${corpus.length} tokens; ` +
          "reload the corpus, it differs from the run's manifest",
      );
    }
    tokens.set(corpus.subarray(offset, offset + blockSize), row * blockSize);
    targets.set(corpus.subarray(offset + 1, offset + 1 + blockSize), row * blockSize);
  });
  return { tokens, targets };
}

/** What a micro-batch reads of the corpus: for each sequence its T tokens and the last one's target. */
export function windowsOf(offsets: Uint32Array, blockSize: number): TokenRange[] {
  return Array.from(offsets, (begin) => ({ begin, end: begin + blockSize + 1 }));
}

/** As {@link sliceBatch}, of a corpus that lies elsewhere. @throws {ShoalError} bad-corpus */
export async function readBatch(
  source: TokenSource,
  offsets: Uint32Array,
  blockSize: number,
): Promise<Batch> {
  const windows = await Promise.all(windowsOf(offsets, blockSize).map((range) => source.read(range)));
  const tokens = new Uint32Array(offsets.length * blockSize);
  const targets = new Uint32Array(offsets.length * blockSize);
  windows.forEach((window, row) => {
    tokens.set(window.subarray(0, blockSize), row * blockSize);
    targets.set(window.subarray(1), row * blockSize);
  });
  return { tokens, targets };
}

/** Whether the tokens are here, as they are with a corpus of a few megabytes. */
export function isHere(corpus: Corpus | TokenSource): corpus is Corpus {
  return ArrayBuffer.isView(corpus);
}
