// How peers get the model that a run begins with, frozen beside adapters or about to be trained: a list of its tensors, and any bytes of
// its file. Nothing is kept in memory here. Not the file (store/base.ts, store/start_weights.ts). What must stay true: a range is answered as it was asked for, or not at all.
import type { Hono } from "hono";
import type { BaseSource } from "../store/base_source.ts";
import { type BaseList, isBaseUrl } from "../../peer/wire/base.ts";
import type { Invite } from "../../peer/wire/status.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { problem, unauthorized } from "./answers.ts";
import { rangeHeaders, rangeOf } from "./ranges.ts";

/** Largest range of one answer; a peer asks for less, unless one tensor is larger. */
const RANGE_BYTES_MAX = 4 * 2 ** 30;

export interface OpenBase {
  /** Bytes [begin, end); null if they are no longer here. */
  pieces(begin: number, end: number): AsyncIterable<Uint8Array> | Iterable<Uint8Array> | null;
  /** What peers are told of it. */
  list: BaseList;
  /** Only until the first steps are made: the model itself is trained. */
  trained: boolean;
}

/** `GET /api/base`: what there is. `GET /api/base/file` with a Range: bytes of it. */
export function addBaseRoutes(
  app: Hono,
  { pieces, list }: OpenBase,
  authorised: (request: Request) => boolean,
): void {
  app.get("/api/base", (c) => authorised(c.req.raw) ? c.json(list) : unauthorized());
  app.get("/api/base/file", (c) => {
    if (!authorised(c.req.raw)) return unauthorized();
    const range = rangeOf(c.req.header("range"), list.bytes, RANGE_BYTES_MAX);
    if (range === null) {
      return problem(416, "usage", `ask for a part of its ${list.bytes} bytes with Range: bytes=FIRST-LAST`);
    }
    const found = pieces(range.begin, range.end);
    if (found === null) {
      return problem(404, "bad-state", "the run has gone on from what it began with");
    }
    const headers = rangeHeaders(range, list.bytes);
    return new Response(ReadableStream.from(found), { status: 206, headers });
  });
}

/**
 * What peers are told. With an address also where the imported files lie: the address of the one file, or of their folder.
 * @throws {ShoalError} usage if the address is none that peers would ask, or the base was not made from files
 */
export function baseList(
  { list, source }: { list: BaseList; source: BaseSource | null },
  baseUrl?: string,
): BaseList {
  if (baseUrl === undefined) return list;
  if (!isBaseUrl(baseUrl)) {
    throw new ShoalError(
      "usage",
      `--base_url is "${baseUrl}"; use an https address without a name or password`,
    );
  }
  if (source === null) {
    throw new ShoalError(
      "usage",
      "--base_url: the model was not imported from files that could lie elsewhere, or by an older version: import it again",
    );
  }
  const { files, tensors } = source;
  const single = new URL(baseUrl).pathname.endsWith(".safetensors");
  if (single && files.length > 1) {
    throw new ShoalError(
      "usage",
      `--base_url names one file, the model has ${files.length}; name their folder, such as https://host/model/`,
    );
  }
  const folder = baseUrl.replace(/\/*$/, "/");
  return {
    ...list,
    source: { urls: single ? [baseUrl] : files.map((file) => folder + encodeURIComponent(file)), tensors },
  };
}

/** Where else a peer may fetch from, as a page's policy names it. */
export function originsOf({ source }: BaseList): string[] {
  return [...new Set((source?.urls ?? []).map((url) => new URL(url).origin))];
}

/** What somebody who is about to join reads of it: a stage's share is fetched once. */
export function baseInvite({ list, trained }: OpenBase, stages: number): NonNullable<Invite["base"]> {
  const params = list.tensors.reduce((sum, { begin, end }) => sum + (end - begin) / 4, 0);
  const hosts = originsOf(list).map((origin) => new URL(origin).host);
  return { params, bytes: Math.ceil(4 * params / stages), hosts, ...(trained ? { trained } : {}) };
}
