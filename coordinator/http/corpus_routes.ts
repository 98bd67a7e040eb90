// The text that a run learns, as peers fetch it: whole, or the pages they need with the hashes that prove them. Whoever may join may read
// it. What must stay true: of a text on the disk no more is in memory than the piece that is being sent.
import type { Hono } from "hono";
import { piecesOf, TokenFile, type Tokens } from "../store/token_store.ts";
import { problem, unauthorized } from "./answers.ts";
import { type ByteRange, rangeHeaders, rangeOf } from "./ranges.ts";

/** Largest range of one answer. */
const RANGE_BYTES_MAX = 64 << 20;
/** Pages of one answer; a peer asks for a micro-batch's. */
const LISTED_MAX = 256;
const BYTES = "application/octet-stream";

/** `GET /api/corpus`, with or without a Range; `GET /api/corpus/pages`: hashes; `GET /api/corpus/pages/3,17,4`: those pages. */
export function addCorpusRoutes(
  app: Hono,
  tokens: Tokens,
  authorised: (request: Request) => boolean,
): void {
  const { byteLength } = tokens;
  app.get("/api/corpus", (c) => {
    if (!authorised(c.req.raw)) return unauthorized();
    const asked = c.req.header("range");
    if (asked === undefined) return answer(tokens, { begin: 0, end: byteLength }, 200);
    const range = rangeOf(asked, byteLength, RANGE_BYTES_MAX);
    if (range !== null) return answer(tokens, range, 206);
    const remedy = "ask for a part with Range: bytes=FIRST-LAST, or for all of it without";
    return problem(416, "usage", `the text has ${byteLength} bytes; ${remedy}`);
  });
  app.get("/api/corpus/pages", (c) => {
    if (!authorised(c.req.raw)) return unauthorized();
    if (!(tokens instanceof TokenFile)) return problem(404, "usage", "this text is fetched whole");
    const headers = { "content-type": BYTES, "cache-control": "no-store" };
    return new Response(tokens.pages.digests, { headers });
  });
  app.get("/api/corpus/pages/:list", (c) => {
    if (!authorised(c.req.raw)) return unauthorized();
    if (!(tokens instanceof TokenFile)) return problem(404, "usage", "this text is fetched whole");
    const ranges = listed(c.req.param("list"), tokens);
    if (ranges !== null) return pagesAnswer(tokens, ranges);
    const last = Math.ceil(byteLength / tokens.pages.bytes) - 1;
    return problem(
      400,
      "usage",
      `ask for at most ${LISTED_MAX} pages from 0 to ${last}, with commas between them`,
    );
  });
}

/** Where the pages lie; null if the list is none, or names what is not there. */
function listed(list: string, { pages, byteLength }: TokenFile): ByteRange[] | null {
  if (!/^\d{1,9}(,\d{1,9})*$/.test(list)) return null;
  const ranges = list.split(",").map((number) => {
    const begin = Number(number) * pages.bytes;
    return { begin, end: Math.min(byteLength, begin + pages.bytes) };
  });
  return ranges.length <= LISTED_MAX && ranges.every(({ begin, end }) => begin < end) ? ranges : null;
}

function pagesAnswer(tokens: TokenFile, ranges: readonly ByteRange[]): Response {
  const bytes = ranges.reduce((sum, { begin, end }) => sum + end - begin, 0);
  const headers = { "content-type": BYTES, "content-length": String(bytes), "cache-control": "no-store" };
  return new Response(ReadableStream.from(tokens.parts(ranges)), { headers });
}

function answer(tokens: Tokens, range: ByteRange, status: 200 | 206): Response {
  const about = rangeHeaders(range, tokens.byteLength);
  const { "content-range": _, ...whole } = about;
  // A browser's disk is no place for parts of a text: the peer keeps those that it needs.
  const headers = {
    ...(status === 206 ? about : whole),
    "accept-ranges": "bytes",
    "cache-control": "no-store",
  };
  return new Response(ReadableStream.from(piecesOf(tokens, range.begin, range.end)), { status, headers });
}
