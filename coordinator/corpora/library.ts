// The texts of a coordinator that serves several runs: takes uploads to disk, has them prepared one after the other, lists and deletes
// them. What must stay true: a stranger's bytes are counted as they come and end at a limit, what fails leaves nothing on the disk, and
// a text that a run uses stays.
import { createHash } from "node:crypto";
import { join } from "node:path";
import type { TokenizerInfo } from "../../peer/wire/corpora.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { exists } from "../store/exists.ts";
import type { CutJob, PreparePort } from "./jobs.ts";
import { infoOf } from "./kept.ts";
import { Preparer } from "./preparer.ts";
import { chooseTokenizer, type TokenizerChoice } from "./tokenizer.ts";
import type { CorpusFormat, CorpusInfo, CorpusList } from "./types.ts";

/** Bytes of one upload; a text with more gives more tokens than are kept of one. */
export const UPLOAD_BYTES_MAX = 16 * 2 ** 30;
export const TOKENIZER_BYTES_MAX = 64 << 20;
/** Uploads that come in or wait at a time; each keeps a file on the disk. */
const UPLOADS_MAX = 8;
/** Failures that are remembered until somebody has read them. */
const FAILED_MAX = 20;
/** Tokenizers that are kept; each has up to 64 MiB on the disk. */
const TOKENIZERS_MAX = 32;
const ID = /^[0-9a-f]{16}$/;
const UPLOAD_PREFIX = ".upload-";
const TOKENIZERS = "tokenizers";

export interface LibraryOptions {
  folder: string;
  /** Names of the runs that learn a text. */
  usedBy?(id: string): string[];
  spawn?(): PreparePort;
}

export interface UploadRequest {
  name: string;
  format: CorpusFormat;
  column: string;
  /** char, gpt2, or the id that {@link CorpusLibrary.addTokenizer} gave. */
  tokenizer: string;
  multiple: number;
  /** What the sender says of the size; null if nothing. */
  bytesTotal: number | null;
}

interface Entry {
  info: Omit<CorpusInfo, "usedBy">;
  /** Ends what is under way. */
  abort: AbortController;
}

export class CorpusLibrary implements CorpusList {
  readonly #folder: string;
  readonly #usedBy: (id: string) => string[];
  readonly #preparer: Preparer;
  readonly #entries = new Map<string, Entry>();
  readonly #tokenizers = new Map<string, string>();

  private constructor({ folder, usedBy = () => [], spawn }: LibraryOptions) {
    this.#folder = folder;
    this.#usedBy = usedBy;
    this.#preparer = new Preparer(spawn);
  }

  /** Finds what is there; what was not finished is removed. */
  static async open(options: LibraryOptions): Promise<CorpusLibrary> {
    const library = new CorpusLibrary(options);
    // It is made with the first upload.
    if (!await exists(options.folder)) return library;
    for await (const { name } of Deno.readDir(options.folder)) {
      if (name.startsWith(UPLOAD_PREFIX) || name.startsWith(".writing-")) {
        await Deno.remove(join(options.folder, name), { recursive: true });
      } else if (ID.test(name)) await library.#find(name);
    }
    if (!await exists(join(options.folder, TOKENIZERS))) return library;
    for await (const { name } of Deno.readDir(join(options.folder, TOKENIZERS))) {
      const [, id, label] = /^([0-9a-f]{16})-(.+)$/.exec(name) ?? [];
      if (id !== undefined && label !== undefined) library.#tokenizers.set(id, label);
    }
    return library;
  }

  /** Where runs find the prepared texts. */
  get folder(): string {
    return this.#folder;
  }

  listCorpora(): CorpusInfo[] {
    return [...this.#entries.values()].map(({ info }) => ({ ...info, usedBy: this.#usedBy(info.id) }));
  }

  /** Tokenizers that were brought: what an upload names them with. */
  listTokenizers(): TokenizerInfo[] {
    return [...this.#tokenizers].map(([id, name]) => ({ id, name }));
  }

  /**
   * Takes a text, and returns once it is on the disk; it is prepared afterwards, which the list shows.
   * @throws {ShoalError} bad-corpus, storage-full, or usage if too many are under way.
   */
  async receive(request: UploadRequest, body: AsyncIterable<Uint8Array>): Promise<CorpusInfo> {
    const underWay = [...this.#entries.values()].filter(({ info }) => isUnderWay(info)).length;
    if (underWay >= UPLOADS_MAX) {
      throw new ShoalError("usage", `${underWay} texts are under way already; wait until one is done`);
    }
    const { choice, label } = await this.#chosen(request.tokenizer);
    const id = randomId(), path = join(this.#folder, UPLOAD_PREFIX + id);
    const { name, format, column, bytesTotal } = request;
    const info: Entry["info"] = {
      ...{
        id,
        name,
        format,
        tokenizer: label,
        column: format === "text" ? null : column,
        bytes: 0,
        bytesTotal,
      },
      ...{ bytesDone: 0, documents: 0, tokens: 0, vocabulary: 0, state: "receiving", error: null },
    };
    const entry: Entry = { info, abort: new AbortController() };
    this.#entries.set(id, entry);
    try {
      const hash = await this.#store(entry, path, body);
      info.state = "waiting";
      const source = { path, name, format, column };
      void this.#prepare(entry, {
        ...{ type: "cut", source, choice, hash, folder: this.#folder, multiple: request.multiple },
      });
      return { ...info, usedBy: [] };
    } catch (error) {
      this.#entries.delete(id);
      await removeIfThere(path);
      throw error;
    }
  }

  async #chosen(tokenizer: string): Promise<{ choice: TokenizerChoice; label: string }> {
    if (tokenizer === "char" || tokenizer === "gpt2") {
      return { choice: await chooseTokenizer(tokenizer), label: tokenizer };
    }
    const label = this.#tokenizers.get(tokenizer);
    if (label === undefined) {
      throw new ShoalError(
        "bad-corpus",
        `the tokenizer "${tokenizer.slice(0, 40)}" is not here; use char or gpt2`,
      );
    }
    const { json } = await chooseTokenizer(join(this.#folder, TOKENIZERS, `${tokenizer}-${label}`));
    return { choice: { label, json }, label };
  }

  /** Writes the body to a file; returns its SHA-256. */
  async #store({ info, abort }: Entry, path: string, body: AsyncIterable<Uint8Array>): Promise<string> {
    const hash = createHash("sha256");
    try {
      await Deno.mkdir(this.#folder, { recursive: true });
      using file = await Deno.open(path, { write: true, createNew: true });
      for await (const chunk of body) {
        abort.signal.throwIfAborted();
        info.bytes += chunk.length;
        if (info.bytes > UPLOAD_BYTES_MAX) {
          throw new ShoalError(
            "bad-corpus",
            `the text has more than ${UPLOAD_BYTES_MAX} bytes; use a part of it`,
          );
        }
        hash.update(chunk);
        for (let at = 0; at < chunk.length;) at += await file.write(chunk.subarray(at));
      }
    } catch (error) {
      if (error instanceof ShoalError) throw error;
      const code = isDiskFull(error) ? "storage-full" : "bad-corpus";
      throw new ShoalError(code, `the text did not arrive: ${messageOf(error)}`, { cause: error });
    }
    if (info.bytesTotal !== null && info.bytes !== info.bytesTotal) {
      const what = `${info.bytes} of ${info.bytesTotal} bytes arrived`;
      throw new ShoalError("bad-corpus", `the text did not arrive whole: ${what}; send it again`);
    }
    return hash.digest("hex");
  }

  async #prepare({ info, abort }: Entry, job: CutJob): Promise<void> {
    const work = this.#preparer.run(job, {
      signal: abort.signal,
      onBegin: () => info.state = "preparing",
      onProgress: ({ bytes, tokens, documents }) => {
        Object.assign(info, { bytesDone: Math.floor(bytes), tokens, documents });
      },
    });
    const outcome = await work.then(({ id }) => ({ id }), (error: unknown) => ({ error }));
    await removeIfThere(job.source.path);
    if ("error" in outcome && !abort.signal.aborted) return this.#fail(info, outcome.error);
    if ("id" in outcome && outcome.id !== null && !this.#entries.has(outcome.id)) {
      await this.#find(outcome.id);
    }
    this.#entries.delete(info.id);
  }

  #fail(info: Entry["info"], error: unknown): void {
    const code = error instanceof ShoalError ? error.code : "internal";
    info.state = "failed";
    info.error = { code, message: messageOf(error) };
    this.#forgetFailures();
  }

  #forgetFailures(): void {
    const failed = [...this.#entries.values()].filter((it) => it.info.state === "failed");
    for (const { info } of failed.slice(0, Math.max(0, failed.length - FAILED_MAX))) {
      this.#entries.delete(info.id);
    }
  }

  /** Adds what lies on the disk to the list; a damaged one is listed with what is wrong. */
  async #find(id: string): Promise<void> {
    const info = await infoOf(this.#folder, id);
    this.#entries.set(id, { info, abort: new AbortController() });
    if (info.state === "failed") this.#forgetFailures();
  }

  /** A text that was prepared here otherwise than by an upload is on the list from now on. */
  async adopt(id: string): Promise<void> {
    if (!this.#entries.has(id)) await this.#find(id);
  }

  /** Keeps a tokenizer.json and returns what uploads name it with. @throws {ShoalError} bad-corpus if it cannot be used */
  async addTokenizer(name: string, json: string): Promise<{ id: string; vocabulary: number }> {
    const label = fileLabel(name);
    const id = createHash("sha256").update(json).digest("hex").slice(0, 16);
    if (!this.#tokenizers.has(id) && this.#tokenizers.size >= TOKENIZERS_MAX) {
      throw new ShoalError(
        "usage",
        `${TOKENIZERS_MAX} tokenizers are kept already; delete one from the folder`,
      );
    }
    const job = { type: "check" as const, choice: { label, json } };
    const { vocabulary } = await this.#preparer.run(job, { signal: new AbortController().signal });
    if (!this.#tokenizers.has(id)) {
      await Deno.mkdir(join(this.#folder, TOKENIZERS), { recursive: true });
      await Deno.writeTextFile(join(this.#folder, TOKENIZERS, `${id}-${label}`), json);
      this.#tokenizers.set(id, label);
    }
    return { id, vocabulary };
  }

  /** Deletes a text, ends one that is under way, or forgets a failure. @throws {ShoalError} usage if it is used or unknown */
  async remove(id: string): Promise<void> {
    const entry = this.#entries.get(id);
    if (entry === undefined) {
      throw new ShoalError("usage", `there is no text ${id.slice(0, 40)}; look at the list`);
    }
    const runs = this.#usedBy(id);
    if (runs.length > 0) {
      const names = runs.slice(0, 4).map((run) => `"${run}"`).join(", ");
      throw new ShoalError("usage", `the text is used by ${names}; delete or archive what uses it first`);
    }
    entry.abort.abort(new ShoalError("usage", "the text was deleted"));
    if (isUnderWay(entry.info)) return;
    this.#entries.delete(id);
    if (ID.test(id)) await removeIfThere(join(this.#folder, id));
  }

  close(): void {
    for (const { info, abort } of this.#entries.values()) {
      if (isUnderWay(info)) abort.abort(new ShoalError("offline", "the coordinator is being stopped"));
    }
  }
}

function isUnderWay({ state }: Entry["info"]): boolean {
  return state === "receiving" || state === "waiting" || state === "preparing";
}

function randomId(): string {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((it) => it.toString(16).padStart(2, "0")).join(
    "",
  );
}

/** A name that stays inside its folder. */
function fileLabel(name: string): string {
  return name.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[.-]+/, "").slice(0, 60) || "tokenizer.json";
}

function isDiskFull(error: unknown): boolean {
  return error instanceof Error && /no space|ENOSPC|disk full/i.test(error.message);
}

async function removeIfThere(path: string): Promise<void> {
  try {
    await Deno.remove(path, { recursive: true });
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
}
