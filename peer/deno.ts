// The command-line peer: one status line on stderr (or JSON lines on stdout), a clean exit, exit codes. Computes with the
// engine that was asked for, or with the one that compute.ts finds to be the quickest here, and says which.
import { openCompute } from "./compute.ts";
import { Gate } from "./limits.ts";
import { DayCount } from "./limits_day.ts";
import { openDenoDevice } from "./gpu/provider_deno.ts";
import { createLinkHost } from "./net/host.ts";
import { GatedHost } from "./net/gated_host.ts";
import { Pacer } from "./net/pacer.ts";
import { simplePeerLinks } from "./net/simple_peer.ts";
import { denoStack, nativeLinksClosed } from "./net/wrtc_deno.ts";
import { Peer } from "./peer.ts";
import { openDenoFolder } from "./store/folder_deno.ts";
import { markOf } from "./store/mark.ts";
import { MemoryNotes } from "./store/notes.ts";
import { openDenoNotes } from "./store/notes_deno.ts";
import { openSavedStates, type SavedStates } from "./store/saved_states.ts";
import { ShoalError } from "./wire/errors.ts";
import { type Limits, NO_LIMITS } from "./wire/limits.ts";
import type { EngineWish, TabSnapshot } from "./wire/status.ts";

export interface RunPeerOptions {
  /** http://host:port/#token */
  join: string;
  name?: string;
  /** Default auto. */
  engine?: EngineWish;
  json?: boolean;
  /** Folder where states of the newest snapshot outlive the peer; absent: nowhere. */
  stateDir?: string;
  /** What its owner allows; default: everything. */
  limits?: Pick<Limits, "duty" | "memoryBytes" | "upBytesPerS" | "downBytesPerS">;
  /** Bytes of a day, both ways, after which it finishes and leaves; default: no limit. */
  dayBytes?: number;
  /** First abort = finish the step and leave; see `leaveNow`. */
  signal?: AbortSignal;
  /** Abort = say goodbye and go at once. */
  hard?: AbortSignal;
}

/** What a stage may take until the device says otherwise. */
const MEMORY_BYTES = 4_000_000_000;
/** Most that the state folder may take. */
const STATE_DIR_BYTES_MAX = 4_000_000_000;
/** After a clean leave was asked for, the peer goes at once if the run does not let it go. */
const LEAVE_MS = 10_000;
const STATUS_MS = 2_000;

/** Runs until the peer has left; resolves to the exit code: 0 left or done, 1 put out or failed. */
export async function runPeer(options: RunPeerOptions): Promise<number> {
  const { origin, token } = readJoinLink(options.join);
  const tools = {
    openGpu: () => openDenoDevice(wantedProvider()),
    notes: options.stateDir === undefined ? new MemoryNotes() : openDenoNotes(options.stateDir),
  };
  let compute = await openCompute(options.engine ?? "auto", tools);
  const tell = reporter(options.json ?? false);
  const allowance = await openAllowance(options);
  tell({ event: "adapter", adapter: compute.adapter, engine: compute.engine });
  const write = statusWriter(tell);
  const states = options.stateDir === undefined ? null : await openStates(options.stateDir, tell);
  const peer = new Peer({
    ...(states === null ? {} : { states }),
    ...{ origin, token, runtime: "deno", adapter: compute.adapter, engine: compute.engine },
    ...(options.name === undefined ? {} : { name: options.name }),
    mark: await markOf(tools.notes),
    ...(compute.deviceLost === undefined ? {} : { deviceLost: compute.deviceLost }),
    memoryBytes: Math.min(MEMORY_BYTES, options.limits?.memoryBytes ?? MEMORY_BYTES),
    gate: allowance.gate,
    createEngine: (build) => compute.createEngine(build),
    kernels: () => compute.kernels?.() ?? "",
    reopen: async () => {
      compute.destroy();
      return compute = await openCompute(options.engine ?? "auto", tools);
    },
    createHost: (selfId, relay) => allowance.host(selfId, relay),
    onChange: (snapshot) => {
      write(snapshot);
      allowance.look((reason) => {
        tell({ event: "limit", reason });
        leave(peer);
      });
    },
  });
  options.signal?.addEventListener("abort", () => leave(peer), { once: true });
  options.hard?.addEventListener("abort", () => peer.leaveNow("ended by its owner"), { once: true });
  const end = await peer.run();
  tell({ event: "end", kind: end.kind, reason: end.reason });
  await allowance.close();
  await states?.close();
  await nativeLinksClosed();
  compute.destroy();
  return end.kind === "left" || end.kind === "done" ? 0 : 1;
}

/** Duty, rates and the day's bytes of this process. */
async function openAllowance({ limits, dayBytes, stateDir }: RunPeerOptions) {
  const gate = new Gate({ ...NO_LIMITS, ...limits });
  const pacer = new Pacer();
  pacer.setRate(limits?.upBytesPerS ?? null);
  const day = new DayCount(stateDir === undefined ? null : openDenoNotes(stateDir), () => {
    const now = new Date();
    return [now.getFullYear(), now.getMonth() + 1, now.getDate()].join("-");
  });
  if (dayBytes !== undefined) await day.open();
  const total = () => pacer.up + pacer.down + gate.http.up + gate.http.down;
  let over = false;
  return {
    gate,
    host: (selfId: string, relay: ((remote: string, bytes: Uint8Array<ArrayBuffer>) => void) | null) => {
      const createLink = simplePeerLinks(denoStack, { pacer });
      return new GatedHost(createLinkHost({ selfId, relay, createLink, pacer }), gate);
    },
    look: (end: (reason: string) => void) => {
      if (over || dayBytes === undefined || day.count(total()) < dayBytes) return;
      over = true;
      end(`today's limit of ${dayBytes / 1_000_000} MB is reached; it ends at midnight`);
    },
    close: async () => {
      if (dayBytes !== undefined) await day.keep(total());
    },
  };
}

/** A folder that cannot be used is told, and the peer trains on without it. */
function openStates(folder: string, tell: Teller): Promise<SavedStates> {
  return openSavedStates(() => openDenoFolder(folder), {
    bytesMax: STATE_DIR_BYTES_MAX,
    onEvent: ({ what, name, reason }) => tell({ event: "saved-state", what, name, reason }),
  });
}

function leave(peer: Peer): void {
  peer.finishAndLeave();
  Deno.unrefTimer(setTimeout(() => peer.leaveNow(), LEAVE_MS) as unknown as number);
}

/** @throws {ShoalError} usage unless it is a link as the coordinator prints it. */
export function readJoinLink(link: string): { origin: string; token: string } {
  const url = URL.canParse(link) ? new URL(link) : null;
  const token = url?.hash.slice(1) ?? "";
  if (url !== null && /^https?:$/.test(url.protocol) && token !== "") {
    // Behind a hub a run's addresses begin with its place, such as /r/name.
    return { origin: url.origin + url.pathname.replace(/(\/admin)?\/*$/, ""), token };
  }
  throw new ShoalError("usage", `"${link}" is not a join link; copy it whole, http://host:port/#token`);
}

/** SHOAL_GPU_PROVIDER=builtin or dawn names the WebGPU provider, for comparing them. */
function wantedProvider(): { provider?: "builtin" | "dawn" } {
  const named = Deno.env.get("SHOAL_GPU_PROVIDER");
  return named === "builtin" || named === "dawn" ? { provider: named } : {};
}

type Teller = (line: Record<string, unknown>) => void;

function reporter(json: boolean): Teller {
  if (json) return (line) => console.log(JSON.stringify(line));
  return (line) => console.error(Object.entries(line).map(([key, value]) => `${key} ${value}`).join(" | "));
}

/** One line whenever the phase changes, and one now and then in between. */
function statusWriter(tell: Teller): (snapshot: TabSnapshot) => void {
  let phase = "";
  let at = 0;
  let step = -1;
  let note = "";
  return (s) => {
    if (s.note !== undefined && s.note !== note) tell({ event: "note", text: note = s.note });
    const now = performance.now();
    if (s.phase === phase && (now - at < STATUS_MS || s.step === step)) return;
    [phase, at, step] = [s.phase, now, s.step];
    const held = s.layers === null ? "no stage" : `stage ${s.stage! + 1}/${s.stageCount}`;
    tell({
      event: "status",
      phase: s.phase,
      held,
      step: s.step,
      own_ms: Math.round(s.ownStepMs),
      reason: s.reason,
    });
  };
}
