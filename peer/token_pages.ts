// A corpus too large to be fetched whole, page by page as micro-batches need it: each page is asked for once while it is kept, proved by its
// hash, and let go when others are more recent. It knows nothing of steps. What must stay true: bytes are never given out unproved, and
// what is kept and on its way stays below a limit, whatever is expected.
import type { BytesPerToken, Corpus, TokenRange, TokenSource } from "./model/data.ts";
import { corpusView } from "./model/data.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";

/** Pages that are kept, bytes: a few steps' windows, and little beside a stage's parameters. */
export const CACHE_BYTES_MAX = 64 << 20;
/** One request fetches at most so much: all pages of a micro-batch, as a rule, which lie far apart. */
const REQUEST_BYTES_MAX = 1 << 20;
export const REQUEST_PAGES_MAX = 256;
/** Requests at a time; a browser opens six connections to a server, and states travel, too. */
const REQUESTS_MAX = 4;
/** A page that arrives damaged or not at all is asked for so often, with a pause in between. */
const TRIES = 3;
const PAUSE_MS = 500;
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
  /** The bytes of these pages, one after the other. */
  fetch(pages: readonly number[]): Promise<Uint8Array>;
  /** Default {@link CACHE_BYTES_MAX}. */
  cacheBytes?: number;
  /** Between two tries, ms; tests take less. */
  pauseMs?: number;
}

type Page = Uint8Array<ArrayBuffer>;

interface Entry extends PromiseWithResolvers<Page> {
  /** It has arrived, and counts among those that are kept. */
  settled: boolean;
}

export class TokenPages implements TokenSource {
  readonly length: number;
  readonly #options: Required<TokenPagesOptions>;
  readonly #bytes: number;
  /** By number; the least recently used first. */
  readonly #entries = new Map<number, Entry>();
  /** Somebody waits for these, which are not under way yet. */
  #wanted: number[] = [];
  /** Nobody does yet. */
  #expected: number[] = [];
  /** Pages that were expected and have not been read yet. */
  readonly #ahead = new Set<number>();
  #underWay = 0;
  /** Pages that have arrived and are kept. */
  #settled = 0;
  #digests: Promise<Uint8Array> | null = null;
  /** Reads that wait, since when, and how long others did before. */
  #reads = 0;
  #since = 0;
  #waitMs = 0;

  /** @throws {ShoalError} bad-corpus for pages of a size that cannot be */
  constructor(options: TokenPagesOptions) {
    const { tokens, bytesPerToken, pageBytes } = options;
    if (!(pageBytes >= PAGE_BYTES_MIN && pageBytes <= PAGE_BYTES_MAX && pageBytes % 4 === 0)) {
      throw new ShoalError("bad-corpus", `the corpus comes in pages of ${pageBytes} bytes, which cannot be`);
    }
    this.#options = { cacheBytes: CACHE_BYTES_MAX, pauseMs: PAUSE_MS, ...options };
    this.length = tokens;
    this.#bytes = tokens * bytesPerToken;
  }

  async read(range: TokenRange): Promise<Corpus> {
    if (this.#reads++ === 0) this.#since = performance.now();
    try {
      return await this.#read(range);
    } finally {
      if (--this.#reads === 0) this.#waitMs += performance.now() - this.#since;
    }
  }

  takeWaitMs(): number {
    const waited = this.#waitMs;
    this.#waitMs = 0;
    return waited;
  }

  async #read({ begin, end }: TokenRange): Promise<Corpus> {
    if (!(begin >= 0 && begin < end && end <= this.length)) {
      throw new ShoalError("bad-corpus", `tokens ${begin} to ${end} leave the corpus of ${this.length}`);
    }
    const { bytesPerToken: width, pageBytes } = this.#options;
    const from = begin * width, to = end * width;
    const numbers = pagesOf(from, to, pageBytes);
    const pages = numbers.map((number) => this.#use(number));
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
    const missing = [...numbers].filter((number) => !this.#entries.has(number));
    for (const number of missing.slice(0, room)) {
      this.#ahead.add(number);
      this.#enter(number);
      this.#expected.push(number);
    }
  }

  /** The page, which becomes the most recently used one; it is asked for if it is not here or on its way. */
  #use(number: number): Promise<Page> {
    const known = this.#entries.get(number);
    const entry = known ?? this.#enter(number);
    if (known === undefined) this.#wanted.push(number);
    else if (!known.settled) this.#promote(number);
    this.#entries.delete(number);
    this.#entries.set(number, entry);
    this.#ahead.delete(number);
    return entry.promise;
  }

  #enter(number: number): Entry {
    const entry: Entry = { ...Promise.withResolvers<Page>(), settled: false };
    entry.promise.catch(() => {});
    this.#entries.set(number, entry);
    // What is read at the same time, as the rows of a micro-batch are, travels together.
    queueMicrotask(() => this.#start());
    return entry;
  }

  #promote(number: number): void {
    const at = this.#expected.indexOf(number);
    if (at >= 0) this.#wanted.push(...this.#expected.splice(at, 1));
  }

  #start(): void {
    const { pageBytes } = this.#options;
    const most = Math.max(1, Math.min(REQUEST_PAGES_MAX, Math.floor(REQUEST_BYTES_MAX / pageBytes)));
    while (this.#underWay < REQUESTS_MAX) {
      const queue = this.#wanted.length > 0 ? this.#wanted : this.#expected;
      const numbers = queue.splice(0, most);
      if (numbers.length === 0) return;
      this.#underWay++;
      void this.#fetch(numbers).finally(() => {
        this.#underWay--;
        this.#start();
      });
    }
  }

  async #fetch(numbers: readonly number[]): Promise<void> {
    try {
      const pages = await this.#proved(numbers);
      numbers.forEach((number, i) => this.#settle(number, pages[i]!));
      this.#trim();
    } catch (error) {
      // Whoever reads them next asks again.
      for (const number of numbers) {
        this.#entries.get(number)?.reject(error);
        this.#forget(number);
      }
    }
  }

  async #proved(numbers: readonly number[]): Promise<Page[]> {
    const digests = await this.#patiently(() => this.#digestsOnce());
    for (let attempt = 1;; attempt++) {
      const bytes = await this.#patiently(() => this.#options.fetch(numbers));
      const pages = this.#cut(bytes, numbers);
      if (pages !== null && await areProved(pages, numbers, digests)) return pages;
      if (attempt === TRIES) {
        const which = numbers.length === 1
          ? `page ${numbers[0]}`
          : `${numbers.length} pages from ${numbers[0]} on`;
        throw new ShoalError(
          "bad-corpus",
          `${which} of the corpus arrived damaged ${TRIES} times; reload to try again`,
        );
      }
    }
  }

  /** Copies, so that a page which is kept does not keep its neighbours; null: they are more or less than that. */
  #cut(bytes: Uint8Array, numbers: readonly number[]): Page[] | null {
    const { pageBytes } = this.#options, pages: Page[] = [];
    let at = 0;
    for (const number of numbers) {
      const size = Math.min(pageBytes, this.#bytes - number * pageBytes);
      pages.push(bytes.slice(at, at += size));
    }
    return at === bytes.length ? pages : null;
  }

  /** Whoever computes with a page leaves the run without it, so one that is lost on the way is asked for again. */
  async #patiently<T>(ask: () => Promise<T>): Promise<T> {
    for (let attempt = 1;; attempt++) {
      try {
        return await ask();
      } catch (error) {
        if (attempt === TRIES) throw error;
        await new Promise((resolve) => setTimeout(resolve, this.#options.pauseMs));
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

  #settle(number: number, page: Page): void {
    const entry = this.#entries.get(number);
    if (entry === undefined) return;
    entry.settled = true;
    this.#settled++;
    entry.resolve(page);
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

async function areProved(
  pages: readonly Page[],
  numbers: readonly number[],
  digests: Uint8Array,
): Promise<boolean> {
  const found = await Promise.all(pages.map((page) => crypto.subtle.digest("SHA-256", page)));
  return found.every((digest, i) => {
    const from = numbers[i]! * DIGEST_BYTES;
    return new Uint8Array(digest).every((byte, at) => byte === digests[from + at]);
  });
}
