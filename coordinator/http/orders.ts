// The organizer's orders over HTTP: pause, stop, drain, put out, change, go back, and what is done with checkpoints. Checks what
// was asked and hands it to the run's core, which decides. Every route wants the admin token.
import type { Hono } from "hono";
import { CHANGES_MAX } from "../core/changes.ts";
import { previewReplan } from "../core/replan.ts";
import { CHANGEABLE_KEYS, type ChangeableKey, type ConfigValues } from "../../peer/wire/changes.ts";
import type { Shell } from "../shell.ts";
import { checkpointStates } from "../store/checkpoint_list.ts";
import { checkpointsDir, readCheckpoint } from "../store/checkpoints.ts";
import { readConfig } from "../../peer/model/config.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { bodyOf, problem, shown, unauthorized } from "./answers.ts";
import { evict } from "./banish.ts";
import type { Door } from "./door.ts";
import { join } from "node:path";

export interface OrderOptions {
  shell: Shell;
  door: Door;
  outDir: string;
  /** Whose token the request has, as the log calls them; null = no organizer's. */
  who(request: Request): string | null;
  /** What a page sees once the order was taken. */
  status(): unknown;
}

type Taken = Response | null;

/** A refusal, or null once the core has the order of `by`. */
type Handler = (body: Record<string, unknown>, by: string) => Taken | Promise<Taken>;

export function addOrderRoutes(app: Hono, options: OrderOptions): void {
  const { shell } = options;
  const order = (path: string, handler: Handler) =>
    app.post(path, async (c) => {
      const by = options.who(c.req.raw);
      if (by === null) return unauthorized();
      return await handler(await bodyOf(c.req.raw), by) ?? c.json(options.status());
    });
  order("/api/control", (body, by) => control(shell, body, by));
  order("/api/evict", ({ peer, ...how }, by) => {
    return isPeer(shell, peer) ? evict(options, peer, { ...how, by }) : noPeer(peer);
  });
  order("/api/drain", ({ peer }, by) => {
    if (!isPeer(shell, peer)) return noPeer(peer);
    shell.feed({ type: "admin", action: "drain", peer, by });
    return null;
  });
  order("/api/pin", ({ peer, stage }, by) => {
    return isPeer(shell, peer) ? pin(options, { peer, stage, by }) : noPeer(peer);
  });
  order("/api/change", (body, by) => change(shell, body, by));
  order("/api/rollback", ({ checkpoint }, by) => rollback(options, checkpoint, by));
  order("/api/replan", ({ apply }, by) => replan(shell, apply, by));
  addCheckpointRoutes(app, options);
}

function addCheckpointRoutes(app: Hono, options: OrderOptions): void {
  app.post("/api/checkpoints/:name/verify", async (c) => {
    if (options.who(c.req.raw) === null) return unauthorized();
    return await verify(options, c.req.param("name"));
  });
  app.delete("/api/checkpoints/:name", async (c) => {
    const by = options.who(c.req.raw);
    if (by === null) return unauthorized();
    return await remove(options, c.req.param("name"), by) ?? c.json(options.status());
  });
}

function control(shell: Shell, { action, step }: Record<string, unknown>, by: string): Taken {
  if (action === "stop" && step !== undefined) {
    if (!isStep(step)) return problem(400, "usage", `step ${shown(step)}; use a whole number of steps`);
    shell.feed({ type: "admin", action, step, by });
    return null;
  }
  if (action !== "pause" && action !== "resume" && action !== "stop") {
    return problem(400, "usage", `action ${shown(action)}; use pause, resume or stop`);
  }
  shell.feed({ type: "admin", action, by });
  return null;
}

/** A dry run: what the planner would do now and what that would change. With `apply` it is done at the next boundary. */
function replan(shell: Shell, apply: unknown, by: string): Response {
  if (apply !== undefined && typeof apply !== "boolean") {
    return problem(400, "usage", `apply ${shown(apply)}; use true or false`);
  }
  const preview = previewReplan(shell.core.state);
  if (apply === true && preview.possible) shell.feed({ type: "admin", action: "replan", by });
  return Response.json(preview);
}

/** Stages are counted from 1, as people do; null lets it compute any. */
function pin(
  { shell, door }: OrderOptions,
  { peer, stage, by }: { peer: string; stage: unknown; by: string },
): Taken {
  const { spec, config } = shell.core.state;
  if (stage !== null && !(isStep(stage) && stage >= 1 && stage <= spec.n_layer)) {
    return problem(400, "usage", `stage is ${shown(stage)}; use a number from 1 to ${spec.n_layer}, or null`);
  }
  if (!["dynamic", "2bw", "auto"].includes(config.schedule)) {
    return problem(
      409,
      "usage",
      `the schedule ${config.schedule} places its stages itself; pin with dynamic`,
    );
  }
  const index = stage === null ? null : stage - 1;
  try {
    // On disk before anybody is told: a restart must not take it back.
    door.pin(peer, index);
  } catch (error) {
    return problem(507, "storage-full", `the pin could not be kept: ${messageOf(error)}`);
  }
  shell.feed({ type: "admin", action: "pin", peer, stage: index, by });
  return null;
}

/** The whole configuration as it would be is checked, not only the keys that change. */
function change(shell: Shell, { step, set }: Record<string, unknown>, by: string): Taken {
  if (!isStep(step)) return problem(400, "usage", `step ${shown(step)}; use a whole number of steps`);
  const { state } = shell.core;
  if (state.changes.filter(({ planned }) => !planned).length >= CHANGES_MAX) {
    return problem(
      409,
      "bad-config",
      `a run has at most ${CHANGES_MAX} changes; start another from a checkpoint`,
    );
  }
  const entries = typeof set === "object" && set !== null ? Object.entries(set) : [];
  if (entries.length === 0) return problem(400, "usage", 'nothing to change; send {"step", "set": {...}}');
  const fixed = entries.find(([key]) => !CHANGEABLE_KEYS.includes(key as ChangeableKey));
  if (fixed !== undefined) {
    const keys = CHANGEABLE_KEYS.join(", ");
    return problem(
      400,
      "bad-config",
      `${fixed[0].slice(0, 40)} is fixed for a run; these may change: ${keys}`,
    );
  }
  try {
    readConfig({ ...state.config, ...set as ConfigValues });
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    return problem(400, error.code, error.message);
  }
  shell.feed({ type: "admin", action: "change", step, set: set as ConfigValues, by });
  return null;
}

async function rollback({ shell, outDir }: OrderOptions, name: unknown, by: string): Promise<Taken> {
  if (!isCheckpoint(shell, name)) return noCheckpoint(name);
  try {
    const checkpoint = await readCheckpoint(join(checkpointsDir(outDir), name));
    const files = checkpointStates(checkpoint);
    const { step } = checkpoint.manifest;
    for (const { info, bytes } of files) shell.putFile(step, info, bytes);
    const source = { step, files: files.map(({ info }) => info) };
    shell.feed({ type: "admin", action: "rollback", source, name, by });
    return null;
  } catch (error) {
    return unreadable(error);
  }
}

async function verify({ shell, outDir }: OrderOptions, name: string): Promise<Response> {
  if (!isCheckpoint(shell, name)) return noCheckpoint(name);
  try {
    const { manifest } = await readCheckpoint(join(checkpointsDir(outDir), name));
    const files = manifest.files.map(({ name, bytes, sha256 }) => ({ name, bytes, sha256 }));
    return Response.json({ verified: true, step: manifest.step, files });
  } catch (error) {
    return unreadable(error);
  }
}

async function remove({ shell, outDir }: OrderOptions, name: string, by: string): Promise<Taken> {
  if (!isCheckpoint(shell, name)) return noCheckpoint(name);
  await Deno.remove(join(checkpointsDir(outDir), name), { recursive: true });
  shell.checkpoints.splice(shell.checkpoints.findIndex((it) => it.name === name), 1);
  shell.feed({ type: "noted", text: `checkpoint ${name} deleted by ${by}` });
  return null;
}

function unreadable(error: unknown): Response {
  if (!(error instanceof ShoalError)) throw error;
  return problem(422, error.code, messageOf(error));
}

function isStep(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 0;
}

function isPeer(shell: Shell, peer: unknown): peer is string {
  return typeof peer === "string" && Object.hasOwn(shell.core.state.peers, peer);
}

function noPeer(peer: unknown): Response {
  return problem(404, "usage", `there is no peer ${shown(peer)}`);
}

/** Only what this run wrote: a name is never a path. */
function isCheckpoint(shell: Shell, name: unknown): name is string {
  return shell.checkpoints.some((it) => it.name === name);
}

function noCheckpoint(name: unknown): Response {
  return problem(
    404,
    "bad-checkpoint",
    `there is no checkpoint ${shown(name)}; the page lists those there are`,
  );
}
