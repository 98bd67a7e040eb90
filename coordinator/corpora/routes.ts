// The organizer's texts over HTTP: list, upload with progress, tokenizers, delete. Every error is {code, message}, with the line of the
// file where there is one. A body is never held: it goes to the disk as it comes.
import type { Hono } from "hono";
import { type ErrorCode, messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { CorporaAnswer } from "../../peer/wire/corpora.ts";
import { problem, shown, unauthorized } from "../http/answers.ts";
import { type CorpusLibrary, TOKENIZER_BYTES_MAX, UPLOAD_BYTES_MAX, type UploadRequest } from "./library.ts";
import { formatOf } from "./sources.ts";
import type { CorpusFormat } from "./types.ts";

const FORMATS: readonly CorpusFormat[] = ["text", "jsonl", "parquet"];
/** Characters of a name or a column. */
const NAME_MAX = 200;
const MULTIPLE_MAX = 1024;

export interface CorporaRoutes {
  library: CorpusLibrary;
  isAdmin(request: Request): boolean;
}

/** Adds /api/corpora, which only the organizer may use. */
export function addCorporaRoutes(app: Hono, { library, isAdmin }: CorporaRoutes): void {
  app.use("/api/corpora/*", async (c, next) => isAdmin(c.req.raw) ? await next() : unauthorized());
  app.get("/api/corpora", (c) => {
    const limits = { bytes: UPLOAD_BYTES_MAX, tokenizerBytes: TOKENIZER_BYTES_MAX };
    const lists = { corpora: library.listCorpora(), tokenizers: library.listTokenizers() };
    return c.json({ ...lists, limits } satisfies CorporaAnswer);
  });
  app.post("/api/corpora", (c) => answered(() => upload(library, c.req.raw)));
  app.post("/api/corpora/tokenizers", (c) => answered(() => addTokenizer(library, c.req.raw)));
  app.delete("/api/corpora/:id", (c) =>
    answered(async () => {
      await library.remove(c.req.param("id"));
      return new Response(null, { status: 204 });
    }));
}

async function upload(library: CorpusLibrary, request: Request): Promise<Response> {
  const length = lengthOf(request, UPLOAD_BYTES_MAX);
  const wish = readUpload(new URL(request.url).searchParams, length);
  if (request.body === null) throw new ShoalError("bad-corpus", "the text is empty; choose another file");
  return Response.json(await library.receive(wish, request.body), { status: 202 });
}

async function addTokenizer(library: CorpusLibrary, request: Request): Promise<Response> {
  const length = lengthOf(request, TOKENIZER_BYTES_MAX);
  if (length === null) throw new ShoalError("usage", "the tokenizer's length is not known; send it with one");
  const name = textOf(new URL(request.url).searchParams, "name", "tokenizer.json");
  const { id, vocabulary } = await library.addTokenizer(name, await request.text());
  return Response.json({ tokenizer: id, vocabulary }, { status: 201 });
}

/** Bytes that were announced; null for a body in pieces. @throws {ShoalError} bad-corpus if they are too many */
function lengthOf(request: Request, most: number): number | null {
  const text = request.headers.get("content-length");
  if (text === null) return null;
  const length = Number(text);
  if (Number.isSafeInteger(length) && length >= 0 && length <= most) return length;
  throw new ShoalError("bad-corpus", `it has ${text.slice(0, 20)} bytes; at most ${most} are taken`);
}

/** @throws {ShoalError} usage with the value that does not fit */
function readUpload(params: URLSearchParams, bytesTotal: number | null): UploadRequest {
  const name = textOf(params, "name", "");
  if (name === "") throw new ShoalError("usage", "the text has no name; add name=...");
  const format = params.get("format") ?? formatOf(name);
  const known = FORMATS.find((it) => it === format);
  if (known === undefined) {
    throw new ShoalError("usage", `the format ${shown(format)} is not known; use ${FORMATS.join(", ")}`);
  }
  const multiple = Number(params.get("multiple") ?? 1);
  if (!(Number.isInteger(multiple) && multiple >= 1 && multiple <= MULTIPLE_MAX)) {
    throw new ShoalError("usage", `multiple is ${shown(params.get("multiple"))}; use 1 to ${MULTIPLE_MAX}`);
  }
  const column = textOf(params, "column", "text"), tokenizer = textOf(params, "tokenizer", "char");
  return { name, format: known, column, tokenizer, multiple, bytesTotal };
}

/** @throws {ShoalError} usage for what cannot be shown on one line */
function textOf(params: URLSearchParams, key: string, absent: string): string {
  const text = params.get(key) ?? absent;
  if (text === "" || new RegExp(`^\\P{C}{1,${NAME_MAX}}$`, "u").test(text)) return text;
  throw new ShoalError("usage", `${key} is ${shown(text)}; use 1 to ${NAME_MAX} printable characters`);
}

const STATUS: Partial<Record<ErrorCode, number>> = {
  usage: 409,
  "bad-corpus": 422,
  "storage-full": 507,
  "missing-tool": 500,
  internal: 500,
};

async function answered(answer: () => Promise<Response>): Promise<Response> {
  try {
    return await answer();
  } catch (error) {
    if (!(error instanceof ShoalError)) return problem(500, "internal", messageOf(error));
    return problem(STATUS[error.code] ?? 422, error.code, error.message);
  }
}
