// The coordinator's HTTP side: pages, JSON API, state files, metrics, and the upgrade to a peer's socket. Two tokens: the
// join token lets a peer in, the admin token steers the run. Every error is {code, message}; nothing here knows the protocol.
import { isHolder } from "../core/holders.ts";
import { isAsked } from "../core/restore.ts";
import { Hono } from "hono";
import { join } from "node:path";
import { metricsText } from "../core/metrics.ts";
import { holderBytes, stateFileBytesPerParam } from "../../peer/model/stage_memory.ts";
import type { RunCoreState } from "../core/run_state.ts";
import type { Shell } from "../shell.ts";
import { checkpointsDir } from "../store/checkpoints.ts";
import { bodyOf, problem, same, unauthorized } from "./answers.ts";
import { addCompletionRoutes } from "./completions.ts";
import { addBaseRoutes, baseInvite, type OpenBase, originsOf } from "./base.ts";
import type { Door } from "./door.ts";
import { addCorpusRoutes } from "./corpus_routes.ts";
import { addExportRoutes } from "./exports.ts";
import { addBanRoutes } from "./banish.ts";
import { addInvitationRoutes } from "./invitations.ts";
import { addOrderRoutes } from "./orders.ts";
import { addOrganizerRoutes, FIRST } from "./organizers.ts";
import { servePage } from "./pages.ts";
import type { Sockets } from "./sockets.ts";
import type { LiveTexts } from "./live_texts.ts";
import type { TextService } from "./text_service.ts";
import { latestCheckpoint } from "../store/weights.ts";
import { BASE_NAME } from "../../peer/model/lora_base.ts";
import { stageLayout } from "../../peer/model/layout.ts";
import { decodeState, stateHash } from "../../peer/model/state_file.ts";
import { PROTOCOL_VERSION } from "../../peer/wire/control.ts";
import type { ModelSpec, RunConfig, StagePlan } from "../../peer/wire/run.ts";
import type { Invite, RunStatus } from "../../peer/wire/status.ts";

export interface AppOptions {
  shell: Shell;
  sockets: Sockets;
  door: Door;
  adminToken: string;
  runName: string;
  operator: string;
  webRoot: string;
  outDir: string;
  /** What adapters belong to, or what a run began with that trains the model itself; absent: it begins from its seed. */
  base?: OpenBase;
  /** With the public token, or another one. */
  joinLink(token?: string): string;
  /** Where its addresses begin, such as "/r/name"; absent: at the root. */
  mount?: string;
  /** Writes text with the newest checkpoint; absent: there is no /v1. */
  texts?: TextService;
  /** Whoever has the join link may write text, too, until an organizer says otherwise; absent: only the organizer. */
  publicText?: boolean;
  /** Writes text with the peers of the run as it is; absent: only a checkpoint writes. */
  live?: LiveTexts;
}

/** Names, shapes and metadata of a state file. */
const STATE_HEADER_BYTES = 1 << 20;

/** Addresses that people read, and the pages behind them. */
const PAGES = { "/": "/index.html", "/admin": "/admin.html" };

type Role = "admin" | "join" | null;

export function createApp(options: AppOptions): Hono {
  const { mount = "" } = options;
  const app = new Hono({ getPath: (request) => pathWithin(mount, request) });
  app.notFound((c) => problem(404, "usage", `there is nothing at ${c.req.method} ${c.req.path}`));
  app.onError((error, c) => c.json({ code: "internal", message: error.message }, 500));
  app.use("*", async (c, next) => {
    await next();
    c.header("X-Content-Type-Options", "nosniff");
    c.header("Referrer-Policy", "no-referrer");
  });
  app.get("/metrics", (c) => {
    const role = roleOf(options, c.req.raw);
    if (role === null) return unauthorized();
    const { core, disk } = options.shell;
    return c.text(metricsText(core.state, { links: role === "admin", disk: disk.status }));
  });
  addPeerRoutes(app, options);
  addStateRoutes(app, options);
  if (options.base !== undefined) {
    const authorised = (request: Request) => peerOf(options, request) !== null;
    addBaseRoutes(app, options.base, authorised);
  }
  addAdminRoutes(app, options);
  addTextRoutes(app, options);
  const connect = options.base === undefined ? [] : originsOf(options.base.list);
  app.get("*", (c) => servePage(options.webRoot, c.req.path, { named: PAGES, connect }));
  return app;
}

function addTextRoutes(app: Hono, options: AppOptions): void {
  const { texts: service, runName: model, operator: owner, outDir, live } = options;
  if (service === undefined) return;
  const authorised = (request: Request) => {
    const role = roleOf(options, request);
    return role === "admin" || (role === "join" && isTextPublic(options));
  };
  addCompletionRoutes(app, {
    ...{ service, authorised, model, owner, checkpoint: () => latestCheckpoint(outDir) },
    ...(live === undefined ? {} : { live }),
  });
}

/** What was ordered last counts, over restarts too; before, what the run was made with. */
function isTextPublic({ door, publicText = false }: AppOptions): boolean {
  return door.invites.text ?? publicText;
}

function addPeerRoutes(app: Hono, options: AppOptions): void {
  const { shell, sockets } = options;
  app.get(
    "/api/invite",
    (c) => roleOf(options, c.req.raw) === null ? unauthorized() : c.json(invite(options)),
  );
  app.get("/api/status", (c) => {
    const role = roleOf(options, c.req.raw);
    return role === null ? unauthorized() : c.json(status(options, role));
  });
  addCorpusRoutes(app, shell.options.corpus.tokens, (request) => roleOf(options, request) !== null);
  app.post("/api/goodbye", async (c) => {
    const { peer, ticket } = await bodyOf(c.req.raw);
    const known = typeof peer === "string" ? sockets.tickets.get(peer) : undefined;
    if (known === undefined || typeof ticket !== "string" || !same(ticket, known)) return unauthorized();
    sockets.goodbye(peer as string, "its page was closed");
    return c.body(null, 204);
  });
  app.get("/api/peer", (c) => {
    if (c.req.header("upgrade")?.toLowerCase() !== "websocket") {
      return problem(426, "usage", "a WebSocket is expected");
    }
    const { socket, response } = Deno.upgradeWebSocket(c.req.raw);
    sockets.accept(socket);
    return response;
  });
}

function addStateRoutes(app: Hono, options: AppOptions): void {
  const { shell } = options;
  app.get("/api/state/:step/:stage/:hash", (c) => {
    if (peerOf(options, c.req.raw) === null) return unauthorized();
    const { step, stage, hash } = c.req.param();
    const bytes = shell.file(Number(step), { stage: Number(stage), hash });
    if (bytes === null) {
      return problem(404, "bad-state", "this snapshot is no longer held; wait for the next view");
    }
    return c.body(bytes as Uint8Array<ArrayBuffer>);
  });
  app.put("/api/state/:step/:stage", async (c) => {
    const peer = peerOf(options, c.req.raw);
    if (peer === null) return unauthorized();
    const cut = Number(c.req.header("x-shoal-cut"));
    return await storeState(options, c.req.raw, {
      peer,
      cut,
      step: Number(c.req.param("step")),
      stage: Number(c.req.param("stage")),
    });
  });
}

interface Upload {
  peer: string;
  cut: number;
  step: number;
  stage: number;
}

/** Takes a stage's state only while it is asked for, from a holder of the stage, in exact shape. */
async function storeState({ shell }: AppOptions, request: Request, at: Upload): Promise<Response> {
  const { state } = shell.core;
  const plan = askedFor(state, at);
  if (plan === null) return problem(409, "bad-state", "this state is not asked for now");
  const most = stageLayout(state.spec, plan).size * stateFileBytesPerParam(state.config) + STATE_HEADER_BYTES;
  const declared = Number(request.headers.get("content-length") ?? NaN);
  if (!(declared <= most)) {
    return problem(413, "bad-state", `a state of this stage has at most ${most} bytes`);
  }
  const bytes = new Uint8Array(await request.arrayBuffer());
  const decoded = decodeState(state.spec, plan, bytes);
  if (!decoded.ok || decoded.value.step !== at.step) {
    return problem(422, "bad-state", decoded.ok ? `it is of step ${decoded.value.step}` : decoded.reason);
  }
  const hash = stateHash(decoded.value);
  if (hash !== request.headers.get("x-shoal-hash")) {
    return problem(422, "bad-state", "its hash differs; send it again");
  }
  // While the body came in, another holder may have been quicker, or the view may have ended.
  if (askedFor(state, at) === null) return problem(409, "bad-state", "this state is not asked for any more");
  shell.putFile(at.step, { stage: at.stage, hash }, bytes);
  const { firstLayer, endLayer, embed, head } = plan;
  const file = { stage: at.stage, firstLayer, endLayer, embed, head, bytes: bytes.length, hash };
  shell.feed({ type: "stored", cut: at.cut, step: at.step, file });
  return Response.json({ stored: bytes.length });
}

/** The stage whose state is wanted from this very peer now; null if it is not, or if the state is there already. */
function askedFor(state: RunCoreState, at: Upload): StagePlan | null {
  const plan = state.view?.stages[at.stage];
  if (plan === undefined || at.cut !== state.view?.cut) return null;
  if (isAsked(state, at)) return plan;
  if (!isHolder(state, at.stage, at.peer)) return null;
  const { pending, transfers } = state;
  const collected = pending?.step === at.step && !pending.files.some((file) => file.stage === at.stage);
  const awaited = transfers.some((it) => it.stage === at.stage && it.step === at.step && it.file === null);
  return collected || awaited ? plan : null;
}

function addAdminRoutes(app: Hono, options: AppOptions): void {
  const { shell, outDir, door } = options;
  const who = (request: Request) => organizerOf(options, request);
  const isAdmin = (request: Request) => roleOf(options, request) === "admin";
  const textPublic = options.texts === undefined ? {} : { textPublic: () => isTextPublic(options) };
  addInvitationRoutes(app, { ...{ shell, door, who, linkOf: options.joinLink }, ...textPublic });
  addOrderRoutes(app, { shell, door, outDir, who, status: () => status(options, "admin") });
  addBanRoutes(app, { shell, door, who });
  addOrganizerRoutes(app, {
    ...{ shell, door, who },
    isFirst: (request) => same(tokenOf(request), options.adminToken),
    linkOf: (token) => new URL(`admin#${token}`, options.joinLink()).href,
  });
  addExportRoutes(app, { shell, outDir, runName: options.runName, isAdmin });
  app.get("/api/trace", (c) => {
    return isAdmin(c.req.raw) ? c.json(shell.core.state.traces.newest) : unauthorized();
  });
  app.get("/api/checkpoints/:name/:file", async (c) => {
    if (roleOf(options, c.req.raw) !== "admin") return unauthorized();
    return await serveCheckpoint(options, c.req.param("name"), c.req.param("file"));
  });
}

/** Only files of checkpoints that this run wrote. */
async function serveCheckpoint(options: AppOptions, name: string, file: string): Promise<Response> {
  const known = options.shell.checkpoints.find((it) => it.name === name);
  // A checkpoint of adapters is whole only with their base, which lies above it.
  if (known !== undefined && file === BASE_NAME) return await serveBase(options.outDir);
  if (known === undefined || !known.files.includes(file)) {
    return problem(404, "bad-checkpoint", `there is no file ${file} in checkpoint ${name}`);
  }
  const bytes = await Deno.readFile(join(checkpointsDir(options.outDir), name, file));
  return new Response(bytes, { headers: attachment(file) });
}

function attachment(file: string): Record<string, string> {
  return {
    "content-type": "application/octet-stream",
    "content-disposition": `attachment; filename="${file}"`,
  };
}

/** Streamed: it is as large as a model. */
async function serveBase(outDir: string): Promise<Response> {
  try {
    const file = await Deno.open(join(outDir, BASE_NAME));
    const { size } = await file.stat();
    return new Response(file.readable, {
      headers: { ...attachment(BASE_NAME), "content-length": String(size) },
    });
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
    return problem(404, "bad-checkpoint", "this run has no base; its checkpoints are whole");
  }
}

function invite(options: AppOptions): Invite {
  const { shell, runName, operator } = options;
  const status = shell.status();
  const { config, spec } = shell.core.state;
  const stages = Math.max(1, status.stages.length, config.min_peers);
  const rows = config.batch_size * spec.block_size;
  const boundary = rows * spec.n_embd *
    (config.codec_forward === "raw32" ? 4 : config.codec_forward === "f16s" ? 2 : 1.03);
  // A stage's integer sum goes to its shadow, and the sum of another stage comes in.
  const sumBytes = config.reduce === "int8" ? 1 : 4;
  const shadowBytes = config.shadows ? 2 * sumBytes * status.params / stages : 0;
  return {
    ...{ runName, operator, state: status.state, params: status.params, dataset: config.dataset },
    peers: status.peers.length,
    ...(options.base === undefined ? {} : { base: baseInvite(options.base, stages) }),
    memoryBytes: typicalBytes({ spec, config }, stages),
    bytesPerStep: Math.round(boundary * 4 * config.gradient_accumulation_steps + shadowBytes),
    version: PROTOCOL_VERSION,
    ...(isTextPublic(options) && options.texts !== undefined ? { text: true } : {}),
  };
}

/** Slots that a stage is likely to have: as many micro-batches are under way as there are stages, and one more. */
function typicalBytes({ spec, config }: { spec: ModelSpec; config: RunConfig }, stages: number): number {
  const layers = Math.max(1, Math.ceil(spec.n_layer / Math.min(stages, spec.n_layer)));
  const stage = {
    index: 0,
    firstLayer: spec.n_layer - layers,
    endLayer: spec.n_layer,
    embed: false,
    head: true,
  };
  const slots = Math.min(stages + 1, config.gradient_accumulation_steps);
  const recompute = config.recompute === "auto" ? "none" : config.recompute;
  return holderBytes({ ...stage, embed: layers === spec.n_layer }, { slots, recompute }, {
    spec,
    config,
    kind: "wgsl",
  });
}

/** A volunteer sees the run, not the other volunteers' addresses, links, log or files. */
function status({ shell, runName, operator, joinLink }: AppOptions, role: Role): RunStatus {
  const core = shell.status();
  const base = { ...core, runName, operator };
  const disk = shell.disk.status;
  const room = disk === null ? {} : { disk };
  if (role === "admin") return { ...base, ...room, checkpoints: shell.checkpoints, joinLink: joinLink() };
  const recovery = { ...core.recovery, departures: [] };
  const peers = core.peers.map(({ linkFigures: _, name: __, ...peer }) => peer);
  // Its sentences call others by the names that they gave themselves.
  const plan = core.plan === undefined
    ? {}
    : { plan: { ...core.plan, reasons: [], changes: [], standBy: [] } };
  return { ...base, ...plan, peers, checkpoints: [], joinLink: null, events: [], recovery };
}

function tokenOf(request: Request): string {
  return request.headers.get("authorization")?.replace(/^Bearer /, "") ?? "";
}

/** As the log calls whoever asks; null = no organizer. */
function organizerOf({ adminToken, door }: AppOptions, request: Request): string | null {
  const given = tokenOf(request);
  return same(given, adminToken) ? FIRST : door.organizer(given);
}

function roleOf(options: AppOptions, request: Request): Role {
  if (organizerOf(options, request) !== null) return "admin";
  return options.door.knows(tokenOf(request)) ? "join" : null;
}

function peerOf(options: AppOptions, request: Request): string | null {
  const peer = request.headers.get("x-shoal-peer") ?? "";
  const ticket = options.sockets.tickets.get(peer);
  return ticket !== undefined && same(request.headers.get("x-shoal-ticket") ?? "", ticket) ? peer : null;
}

/** Where a request leads within this run: behind a hub its address begins with the run's place. */
function pathWithin(mount: string, request: Request): string {
  const { pathname } = new URL(request.url);
  return mount !== "" && pathname.startsWith(`${mount}/`) ? pathname.slice(mount.length) : pathname;
}
