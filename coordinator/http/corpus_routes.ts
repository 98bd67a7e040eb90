// The text that a run learns, as peers fetch it: whole, or the pages they need with the hashes that prove them. Whoever may join may read
// it. What must stay true: of a text on the disk no more is in memory than the piece that is being sent.
import type { Hono } from "hono";
import { piecesOf, TokenFile, type Tokens } from "../store/token_store.ts";
import { problem, unauthorized } from "./answers.ts";
import { rangeHeaders, rangeOf } from "./ranges.ts";

/** Largest range of one answer; a peer asks for a megabyte. */
const RANGE_BYTES_MAX = 64 << 20;
const BYTES = "application/octet-stream";

/** `GET /api/corpus`, with or without a Range, and `GET /api/corpus/pages`. */
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
}

function answer(tokens: Tokens, range: { begin: number; end: number }, status: 200 | 206): Response {
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
