// A corpus too large to be fetched whole, page by page as micro-batches need it: each page is asked for once while it is kept, proved by its
// hash, and let go when others are more recent. It knows nothing of steps. What must stay true: bytes are never given out unproved, and
// what is kept and on its way stays below a limit, whatever is expected.
import type { BytesPerToken, Corpus, TokenRange, TokenSource } from "./model/data.ts";
import { corpusView } from "./model/data.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";

/** Pages that are kept, bytes: a few steps' windows, and little beside a stage's parameters. */
export const CACHE_BYTES_MAX = 64 << 20;
/** One request fetches at most so much, bytes: neighbouring pages travel together. */
const REQUEST_BYTES_MAX = 1 << 20;
/** Requests at a time: as many connections as a browser opens to a server. States wait for one of them at most. */
const REQUESTS_MAX = 6;
/** A page that arrives damaged or not at all is asked for so often. */
const TRIES = 3;
const DIGEST_BYTES = 32;
/** What pages may be: smaller ones are all overhead, larger ones mostly unread. */
const PAGE_BYTES_MIN = 64;
const PAGE_BYTES_MAX = 4 << 20;

export interface TokenPagesOptions {
  tokens: number;
  bytesPerToken: BytesPerToken;
  /** Of every page but the last; a multiple of four. */
  pageBytes: number;
  /** SHA-256 of each page, one after the other. */
  digests(): Promise<Uint8Array>;
  /** The corpus' bytes from the first to before the second. */
  fetch(begin: number, end: number): Promise<Uint8Array>;
  /** Default {@link CACHE_BYTES_MAX}. */
  cacheBytes?: number;
}

type Page = Uint8Array<ArrayBuffer>;

interface Entry {
  page: Promise<Page>;
  /** It has arrived, and counts among those that are kept. */
  settled: boolean;
}

interface Run {
  first: number;
  /** Before this one. */
  end: number;
  resolvers: PromiseWithResolvers<Page>[];
}

export class TokenPages implements TokenSource {
  readonly length: number;
  readonly #options: Required<TokenPagesOptions>;
  readonly #bytes: number;
  /** By number; the least recently used first. */
  readonly #entries = new Map<number, Entry>();
  /** Somebody waits for these. */
  readonly #wanted: Run[] = [];
  /** Nobody does yet. */
  readonly #expected: Run[] = [];
  /** Pages that were expected and have not been read yet. */
  readonly #ahead = new Set<number>();
  #underWay = 0;
  /** Pages that have arrived and are kept. */
  #settled = 0;
  #digests: Promise<Uint8Array> | null = null;

  /** @throws {ShoalError} bad-corpus for pages of a size that cannot be */
  constructor(options: TokenPagesOptions) {
    const { tokens, bytesPerToken, pageBytes } = options;
    if (!(pageBytes >= PAGE_BYTES_MIN && pageBytes <= PAGE_BYTES_MAX && pageBytes % 4 === 0)) {
      throw new ShoalError("bad-corpus", `the corpus comes in pages of ${pageBytes} bytes, which cannot be`);
    }
    this.#options = { cacheBytes: CACHE_BYTES_MAX, ...options };
    this.length = tokens;
    this.#bytes = tokens * bytesPerToken;
  }

  async read({ begin, end }: TokenRange): Promise<Corpus> {
    if (!(begin >= 0 && begin < end && end <= this.length)) {
      throw new ShoalError("bad-corpus", `tokens ${begin} to ${end} leave the corpus of ${this.length}`);
    }
    const { bytesPerToken: width, pageBytes } = this.#options;
    const from = begin * width, to = end * width;
    const numbers = pagesOf(from, to, pageBytes);
    this.#queue(numbers, this.#wanted);
    const pages = numbers.map((number) => this.#use(number));
    this.#start();
    const out = new Uint8Array(to - from);
    for (const [i, page] of (await Promise.all(pages)).entries()) {
      const at = numbers[i]! * pageBytes;
      const part = page.subarray(Math.max(0, from - at), Math.min(page.length, to - at));
      out.set(part, Math.max(0, at - from));
    }
    return corpusView(out.buffer, width);
  }

  /** What does not fit beside the pages in use is not fetched beforehand. */
  expect(ranges: readonly TokenRange[]): void {
    const { bytesPerToken: width, pageBytes, cacheBytes } = this.#options;
    const numbers = new Set(
      ranges.flatMap(({ begin, end }) => pagesOf(begin * width, end * width, pageBytes)),
    );
    const room = Math.max(0, Math.floor(cacheBytes / 2 / pageBytes) - this.#ahead.size);
    const missing = [...numbers].filter((number) => !this.#entries.has(number)).sort((a, b) => a - b);
    const fetched = missing.slice(0, room);
    for (const number of fetched) this.#ahead.add(number);
    this.#queue(fetched, this.#expected);
    this.#start();
  }

  /** The page, which becomes the most recently used one. */
  #use(number: number): Promise<Page> {
    const entry = this.#entries.get(number)!;
    this.#entries.delete(number);
    this.#entries.set(number, entry);
    this.#ahead.delete(number);
    return entry.page;
  }

  /** Neighbours that are missing become one request; one that was only expected is wanted from now on. */
  #queue(numbers: readonly number[], queue: Run[]): void {
    const most = Math.max(1, Math.floor(REQUEST_BYTES_MAX / this.#options.pageBytes));
    let run: Run | null = null;
    for (const number of numbers) {
      if (this.#entries.has(number)) {
        if (queue === this.#wanted) this.#promote(number);
        continue;
      }
      if (run === null || run.end !== number || number - run.first >= most) {
        queue.push(run = { first: number, end: number, resolvers: [] });
      }
      const resolver = Promise.withResolvers<Page>();
      resolver.promise.catch(() => {});
      run.resolvers.push(resolver);
      run.end = number + 1;
      this.#entries.set(number, { page: resolver.promise, settled: false });
    }
  }

  #promote(number: number): void {
    const at = this.#expected.findIndex(({ first, end }) => number >= first && number < end);
    if (at >= 0) this.#wanted.push(...this.#expected.splice(at, 1));
  }

  #start(): void {
    while (this.#underWay < REQUESTS_MAX) {
      const run = this.#wanted.shift() ?? this.#expected.shift();
      if (run === undefined) return;
      this.#underWay++;
      void this.#fetch(run).finally(() => {
        this.#underWay--;
        this.#start();
      });
    }
  }

  async #fetch({ first, end, resolvers }: Run): Promise<void> {
    try {
      const pages = await this.#proved(first, end);
      pages.forEach((page, i) => {
        const entry = this.#entries.get(first + i);
        if (entry !== undefined) this.#settle(entry);
        resolvers[i]!.resolve(page);
      });
      this.#trim();
    } catch (error) {
      // Whoever reads them next asks again.
      for (let number = first; number < end; number++) this.#forget(number);
      for (const { reject } of resolvers) reject(error);
    }
  }

  async #proved(first: number, end: number): Promise<Page[]> {
    const { pageBytes } = this.#options;
    const from = first * pageBytes, to = Math.min(this.#bytes, end * pageBytes);
    const digests = await this.#digestsOnce();
    for (let attempt = 1;; attempt++) {
      const bytes = await this.#options.fetch(from, to);
      const pages = Array.from(
        { length: end - first },
        (_, i) => bytes.slice(i * pageBytes, (i + 1) * pageBytes),
      );
      const whole = bytes.length === to - from;
      if (whole && await areProved(pages, digests.subarray(first * DIGEST_BYTES))) return pages;
      if (attempt === TRIES) {
        throw new ShoalError(
          "bad-corpus",
          `bytes ${from} to ${to} of the corpus arrived damaged ${TRIES} times; reload to try again`,
        );
      }
    }
  }

  /** Asked for with the first page, so that whoever reads none needs none. */
  async #digestsOnce(): Promise<Uint8Array> {
    const asked = this.#digests ??= this.#options.digests();
    try {
      const digests = await asked;
      const pages = Math.ceil(this.#bytes / this.#options.pageBytes);
      if (digests.length === pages * DIGEST_BYTES) return digests;
      throw new ShoalError("bad-corpus", `${digests.length} bytes are no hashes of ${pages} pages`);
    } catch (error) {
      if (this.#digests === asked) this.#digests = null;
      if (error instanceof ShoalError) throw error;
      throw new ShoalError("bad-corpus", `the corpus' hashes did not arrive: ${messageOf(error)}`);
    }
  }

  /** Pages on their way are not counted: requests are few, and what is expected is at most half of what may be kept. */
  #trim(): void {
    const { cacheBytes, pageBytes } = this.#options;
    for (const [number, entry] of this.#entries) {
      if (this.#settled * pageBytes <= cacheBytes) return;
      if (entry.settled) this.#forget(number);
    }
  }

  #settle(entry: Entry): void {
    entry.settled = true;
    this.#settled++;
  }

  #forget(number: number): void {
    if (this.#entries.get(number)?.settled === true) this.#settled--;
    this.#entries.delete(number);
    this.#ahead.delete(number);
  }
}

/** Numbers of the pages in which bytes from the first to before the second lie. */
function pagesOf(from: number, to: number, pageBytes: number): number[] {
  const first = Math.floor(from / pageBytes), last = Math.floor((to - 1) / pageBytes);
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

async function areProved(pages: readonly Page[], digests: Uint8Array): Promise<boolean> {
  const found = await Promise.all(pages.map((page) => crypto.subtle.digest("SHA-256", page)));
  return found.every((digest, i) => {
    const bytes = new Uint8Array(digest);
    return bytes.every((byte, at) => byte === digests[i * DIGEST_BYTES + at]);
  });
}
