// The tab's worker: session, core, exact arithmetic and GPU engine, away from the page's thread. Speaks Comlink with
// browser.ts and a plain port for links. Nothing is computed before start(), which follows the owner's click.
import * as Comlink from "comlink";
import { type Compute, openCompute } from "./compute.ts";
import { openDevice } from "./gpu/device.ts";
import { Gate } from "./limits.ts";
import { GatedHost } from "./net/gated_host.ts";
import { PortHost } from "./net/host_port.ts";
import { Peer } from "./peer.ts";
import { markOf } from "./store/mark.ts";
import { openBrowserNotes } from "./store/notes_browser.ts";
import { openOpfsFolder } from "./store/folder_opfs.ts";
import { openSavedStates, type SavedStates } from "./store/saved_states.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";
import { type Limits, NO_LIMITS } from "./wire/limits.ts";
import type { TabPeer, TabPhase, TabSnapshot } from "./wire/status.ts";

/** Pages are told at most this often. */
const SNAPSHOT_MS = 250;
/** What the others read of a tab that was closed, reloaded or left behind. */
const PAGE_GONE = "its page was closed";
/** First guess of what a tab may use of a device; after a failure the peer offers less, and its owner may allow less. */
const MEMORY_BYTES = 1_000_000_000;

/** Most that states of the newest snapshot may take of the browser's storage. */
const STATE_BYTES_MAX = 500_000_000;

/** Beside the page's contract: where to send the page's end of each session's link port. */
export interface WorkerApi extends TabPeer {
  onLinkPort(take: TakePort): Promise<void>;
  /** Bytes over HTTP so far, which no link counts. */
  http(): Promise<{ up: number; down: number }>;
}

/** Gives the page its end of a session's links, and what it needs to say goodbye for the session. */
type TakePort = (selfId: string, port: MessagePort, ticket: string) => void;
type StartArgs = Parameters<TabPeer["start"]>;

/** Verdicts on this computer's adapters. */
const notes = openBrowserNotes();

class TabWorker implements WorkerApi {
  #peer: Peer | null = null;
  #takePort: TakePort | null = null;
  /** How the present peer was started; null once it has ended by itself. */
  #lending: StartArgs | null = null;
  /** The page went away while it was lending. */
  #away = false;
  #paused = false;
  /** Of this tab, as long as it lives: after a reload the states of the newest snapshot are still there. */
  #states: SavedStates | null = null;

  #limits: Limits = NO_LIMITS;
  readonly #gate = new Gate();

  setLimits(limits: Limits): Promise<void> {
    this.#limits = limits;
    this.#gate.setCaps(limits);
    return Promise.resolve();
  }

  http(): Promise<{ up: number; down: number }> {
    return Promise.resolve(this.#gate.http);
  }

  onLinkPort(take: TakePort): Promise<void> {
    this.#takePort = take;
    return Promise.resolve();
  }

  async start(...args: StartArgs): Promise<void> {
    const [{ origin, token, engine = "auto", name, limits, paused }, onSnapshot] = args;
    if (limits !== undefined) await this.setLimits(limits);
    this.#paused = paused ?? this.#paused;
    const send = throttled(onSnapshot);
    let compute: Compute;
    try {
      compute = await openCompute(engine, { openGpu: () => openDevice({ provider: "builtin" }), notes });
    } catch (error) {
      const code = error instanceof ShoalError ? error.code : "internal";
      const phase: TabPhase = code === "no-adapter" ? "device-lost" : "kicked";
      return send({ ...EMPTY, phase, reason: messageOf(error), code });
    }
    this.#states ??= await openSavedStates(openOpfsFolder, { bytesMax: STATE_BYTES_MAX });
    const peer = new Peer({
      states: this.#states,
      ...{ origin, token, runtime: "tab", gate: this.#gate, paused: this.#paused },
      memoryBytes: Math.min(MEMORY_BYTES, this.#limits.memoryBytes ?? MEMORY_BYTES),
      ...(name === undefined ? {} : { name }),
      mark: await markOf(notes),
      ...compute,
      createHost: (selfId, relay, ticket) =>
        new GatedHost(new PortHost(this.#channel(selfId, ticket), relay), this.#gate),
      onChange: (snapshot) => this.#away || this.#peer !== peer || send(snapshot),
    });
    this.#peer = peer;
    this.#lending = args;
    void peer.run().then(() => {
      if (this.#peer === peer && !this.#away) this.#lending = null;
      compute.destroy();
    });
  }

  goodbye(): Promise<void> {
    this.#away = this.#lending !== null;
    return Promise.resolve(this.#peer?.leaveNow(PAGE_GONE));
  }

  async comeBack(): Promise<void> {
    if (!this.#away || this.#lending === null) return;
    this.#away = false;
    const [options, onSnapshot] = this.#lending;
    // The owner's wishes outlive the page's absence.
    await this.start({ ...options, limits: this.#limits, paused: this.#paused }, onSnapshot);
  }

  /** One end stays here, the other goes to the page; messages wait in the port until it is served. */
  #channel(selfId: string, ticket: string): MessagePort {
    const { port1, port2 } = new MessageChannel();
    this.#takePort?.(selfId, Comlink.transfer(port2, [port2]), ticket);
    return port1;
  }

  pause(): Promise<void> {
    this.#paused = true;
    return Promise.resolve(this.#peer?.pause());
  }

  resume(): Promise<void> {
    this.#paused = false;
    return Promise.resolve(this.#peer?.resume());
  }

  finishAndLeave(): Promise<void> {
    return Promise.resolve(this.#peer?.finishAndLeave());
  }

  leaveNow(): Promise<void> {
    return Promise.resolve(this.#peer?.leaveNow());
  }

  setHidden(hidden: boolean): Promise<void> {
    return Promise.resolve(this.#peer?.setHidden(hidden));
  }
}

const EMPTY: TabSnapshot = {
  ...{
    phase: "joining",
    reason: "",
    adapter: "",
    engine: "",
    stage: null,
    stageCount: 0,
    layers: null,
    params: 0,
  },
  ...{
    memoryBytes: 0,
    step: 0,
    maxIters: 0,
    ownStepMs: 0,
    groupStepMs: 0,
    tokens: 0,
    bytesUp: 0,
    bytesDown: 0,
  },
  ...{ links: { direct: 0, relayed: 0 }, losses: [], sample: null, alone: [] },
};

/** At most one call per interval; the newest snapshot always arrives in the end. */
function throttled(onSnapshot: (snapshot: TabSnapshot) => void): (snapshot: TabSnapshot) => void {
  let newest: TabSnapshot | null = null;
  let waiting = false;
  return (snapshot) => {
    newest = snapshot;
    if (waiting) return;
    waiting = true;
    setTimeout(() => {
      waiting = false;
      if (newest !== null) onSnapshot(newest);
    }, SNAPSHOT_MS);
  };
}

Comlink.expose(new TabWorker());
