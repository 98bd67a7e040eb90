// The JSON interface of a coordinator with several runs: list, make, put away, bring back, delete, and what a configuration would
// take. Checks what was asked and hands it to the hub. All but the public list want the organizer's token of the whole coordinator.
import { type Context, Hono } from "hono";
import * as v from "valibot";
import { ESTIMATED_PEERS_MAX } from "../plan/estimate.ts";
import type { Datasets } from "../hub/datasets.ts";
import type { Estimator } from "../hub/estimator.ts";
import type { Hub } from "../hub/hub.ts";
import { firstError, judge } from "../hub/wish.ts";
import { CONFIG_KEYS, DEFAULT_CONFIG, keyChoices, readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import {
  type ConfigWish,
  type EstimateAnswer,
  GFLOPS_MAX,
  GFLOPS_MIN,
  type HubRun,
  type HubRuns,
  OFFER_BYTES_MAX,
  OFFER_BYTES_MIN,
  RUN_NAME_CHARS_MAX,
  type RunForm,
  type RunText,
} from "../../peer/wire/hub.ts";
import { bodyOf, problem, same } from "./answers.ts";

/** A configuration has some forty keys, and a few addresses of relays. */
const WISH_BYTES_MAX = 32_768;
const KEYS_MAX = 200;

export interface HubRoutesOptions {
  hub: Hub;
  datasets: Datasets;
  estimator: Estimator;
  /** The name by which another run learns the text of a run. */
  takeText(run: string): Promise<string>;
  /** What counts in a new run where its maker says nothing, before Shoal's own defaults. */
  defaults: ConfigWish;
  adminToken: string;
  /** Of a run whose maker names nobody. */
  operator: string;
}

const LINE = v.pipe(
  v.string(),
  v.trim(),
  v.maxLength(RUN_NAME_CHARS_MAX, `use at most ${RUN_NAME_CHARS_MAX} characters`),
  v.regex(/^\P{C}*$/u, "use printable characters"),
);
const CONFIG = v.pipe(
  // A record takes a list, too.
  v.custom<object>((value) => !Array.isArray(value), "use an object of configuration keys"),
  v.record(v.pipe(v.string(), v.maxLength(80)), v.unknown()),
  v.check((config) => Object.keys(config).length <= KEYS_MAX, "there are not so many keys"),
);
const RUN_WISH = v.strictObject({
  name: v.pipe(LINE, v.minLength(1, "a run needs a name")),
  operator: v.optional(LINE),
  listed: v.optional(v.boolean(), false),
  publicText: v.optional(v.boolean(), false),
  config: CONFIG,
  weightsOf: v.optional(v.pipe(v.string(), v.maxLength(80))),
});
const ESTIMATE_WISH = v.strictObject({
  config: CONFIG,
  offerBytes: v.pipe(v.number(), v.minValue(OFFER_BYTES_MIN), v.maxValue(OFFER_BYTES_MAX)),
  gflops: v.pipe(v.number(), v.minValue(GFLOPS_MIN), v.maxValue(GFLOPS_MAX)),
});

/** Refusals of a person's wish; anything else is the server's trouble. */
const STATUS: Partial<Record<ErrorCode, number>> = {
  "usage": 400,
  "bad-config": 400,
  "bad-corpus": 400,
  "bad-checkpoint": 409,
  "run-full": 409,
  "storage-full": 507,
};

export function hubRoutes(options: HubRoutesOptions): Hono {
  const { hub } = options;
  const app = new Hono();
  app.onError(refusal);
  app.get("/api/hub/runs", (c) => {
    const admin = isAdmin(options, c.req.raw);
    // A wrong token is told, or its holder would take the public list for all there is.
    if (!admin && c.req.header("authorization") !== undefined) return unauthorized();
    return c.json({ admin, runs: rowsOf(options, admin) } satisfies HubRuns);
  });
  const admin = (handler: (c: Context) => Response | Promise<Response>) => (c: Context) =>
    isAdmin(options, c.req.raw) ? handler(c) : unauthorized();
  app.post("/api/hub/runs", admin((c) => make(options, c)));
  app.get("/api/hub/form", admin(async (c) => c.json(await formOf(options))));
  app.post("/api/hub/estimate", admin((c) => reckon(options, c)));
  app.get("/api/hub/runs/:id/config", admin((c) => c.json(hub.configOf(c.req.param("id")!))));
  app.post("/api/hub/runs/:id/text", admin(async (c) => c.json(await textOf(options, c.req.param("id")!))));
  addRunRoutes(app, options, admin);
  return app;
}

type Guard = (
  handler: (c: Context) => Response | Promise<Response>,
) => (c: Context) => Response | Promise<Response>;

/** What is done with a run that is there; each answers with the list as it is then. */
function addRunRoutes(app: Hono, options: HubRoutesOptions, admin: Guard): void {
  const { hub } = options;
  const rows = (c: Context) => c.json({ admin: true, runs: rowsOf(options, true) } satisfies HubRuns);
  const idOf = (c: Context) => c.req.param("id")!;
  app.post(
    "/api/hub/runs/:id/archive",
    admin(async (c) => {
      const done = hub.archive(idOf(c));
      // The last checkpoint of a large model takes longer than a page waits; the list says that it is under way.
      await Promise.race([done, new Promise((resolve) => setTimeout(resolve, ARCHIVE_ANSWER_MS))]);
      done.catch(() => {});
      return rows(c);
    }),
  );
  app.post(
    "/api/hub/runs/:id/open",
    admin(async (c) => {
      await hub.restore(idOf(c));
      return rows(c);
    }),
  );
  app.post(
    "/api/hub/runs/:id/list",
    admin(async (c) => {
      const { listed } = await bodyOf(c.req.raw);
      if (typeof listed !== "boolean") return problem(400, "usage", "listed is missing; use true or false");
      hub.list(idOf(c), listed);
      return rows(c);
    }),
  );
  app.delete(
    "/api/hub/runs/:id",
    admin(async (c) => {
      const { name } = await bodyOf(c.req.raw);
      await hub.remove(idOf(c), name);
      return rows(c);
    }),
  );
}

const ARCHIVE_ANSWER_MS = 2_000;

/** What a form for a new run needs to know beforehand. */
async function formOf({ datasets, hub, defaults }: HubRoutesOptions): Promise<RunForm> {
  const choices = CONFIG_KEYS.flatMap((key) => {
    const known = keyChoices(key);
    return known === null ? [] : [[key, known]];
  });
  const values = { defaults: readConfig({ ...defaults }), choices: Object.fromEntries(choices) };
  return { datasets: await datasets.list(), ...values, measured: hub.measured() };
}

/** Configuration keys with which another run learns what this one does; how it is cut is part of it then. */
async function textOf({ takeText }: HubRoutesOptions, id: string): Promise<RunText> {
  const { tokenizer, column } = DEFAULT_CONFIG;
  return { dataset: await takeText(id), tokenizer, column };
}

function rowsOf({ hub, datasets }: HubRoutesOptions, admin: boolean): HubRun[] {
  return hub.rows(admin).map((row) => ({ ...row, dataset: datasets.nameOf(row.dataset) }));
}

async function make(options: HubRoutesOptions, c: Context): Promise<Response> {
  const { hub, datasets, operator, defaults } = options;
  const wish = v.safeParse(RUN_WISH, await wishOf(c.req.raw));
  if (!wish.success) return badWish(wish.issues[0]);
  const { config: given, weightsOf, ...about } = wish.output;
  const judged = judge(given, await datasets.list(), defaults);
  if (!judged.ok) return problem(400, "bad-config", firstError(judged.errors));
  const { config, dataset } = judged;
  const id = await hub.create({
    ...{ ...about, operator: about.operator || operator, config },
    spec: specOf(config, dataset.vocabulary),
    ...(weightsOf === undefined ? {} : { weightsOf }),
  });
  return c.json({ id, runs: rowsOf(options, true) }, 201);
}

/** Errors of a field are no failure of the request: a form that is being filled in is wrong most of the time. */
async function reckon({ datasets, estimator, defaults }: HubRoutesOptions, c: Context): Promise<Response> {
  const wish = v.safeParse(ESTIMATE_WISH, await wishOf(c.req.raw));
  if (!wish.success) return badWish(wish.issues[0]);
  const { config: given, offerBytes, gflops } = wish.output;
  const judged = judge(given, await datasets.list(), defaults);
  if (!judged.ok) return c.json({ errors: judged.errors, estimate: null } satisfies EstimateAnswer);
  const { config, dataset: { tokens, vocabulary } } = judged;
  if (config.min_peers > ESTIMATED_PEERS_MAX) config.min_peers = ESTIMATED_PEERS_MAX;
  const estimate = await estimator.ask({ config, tokens, vocabulary, offerBytes, gflops });
  return c.json({ errors: [], estimate } satisfies EstimateAnswer);
}

async function wishOf(request: Request): Promise<unknown> {
  if (!(Number(request.headers.get("content-length") ?? NaN) <= WISH_BYTES_MAX)) return null;
  return await request.json().catch(() => null);
}

function badWish(issue: v.BaseIssue<unknown>): Response {
  const at = issue.path?.map(({ key }) => String(key)).join(".").slice(0, 80) ?? "the body";
  return problem(400, "usage", `${at}: ${issue.message.slice(0, 200)}`);
}

function refusal(error: Error): Response {
  if (!(error instanceof ShoalError)) return problem(500, "internal", error.message);
  return problem(STATUS[error.code] ?? 500, error.code, error.message);
}

export function isAdmin({ adminToken }: Pick<HubRoutesOptions, "adminToken">, request: Request): boolean {
  return same(request.headers.get("authorization")?.replace(/^Bearer /, "") ?? "", adminToken);
}

function unauthorized(): Response {
  return problem(
    401,
    "bad-token",
    "the token is missing or not of this coordinator; open the link that it printed for its organizer",
  );
}
