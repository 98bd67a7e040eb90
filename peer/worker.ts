// The tab's worker: session, core, exact arithmetic and GPU engine, away from the page's thread. Speaks Comlink with
// browser.ts and a plain port for links. Nothing is computed before start(), which follows the owner's click.
import * as Comlink from "comlink";
import { type Compute, openCompute } from "./compute.ts";
import { openDevice } from "./gpu/device.ts";
import { PortHost } from "./net/host_port.ts";
import { Peer } from "./peer.ts";
import { openBrowserNotes } from "./store/notes_browser.ts";
import { openOpfsFolder } from "./store/folder_opfs.ts";
import { openSavedStates, type SavedStates } from "./store/saved_states.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";
import type { TabInspection, TabPeer, TabPhase, TabSnapshot } from "./wire/status.ts";

/** Pages are told at most this often. */
const SNAPSHOT_MS = 250;
/** What the others read of a tab that was closed, reloaded or left behind. */
const PAGE_GONE = "its page was closed";
/** First guess of what a tab may use of a device; after a failure the peer offers less. */
const MEMORY_BYTES = 1_000_000_000;

/** Most that states of the newest snapshot may take of the browser's storage. */
const STATE_BYTES_MAX = 500_000_000;

/** Beside the page's contract: where to send the page's end of each session's link port. */
export interface WorkerApi extends TabPeer {
  onLinkPort(take: TakePort): Promise<void>;
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

  async inspect(): Promise<TabInspection> {
    if (!("gpu" in navigator)) return { webgpu: "missing", adapter: "", software: false };
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (adapter === null) return { webgpu: "no-adapter", adapter: "", software: false };
    const { vendor, architecture, description } = adapter.info;
    const name = description || [vendor, architecture].filter(Boolean).join(" ") || "an unnamed adapter";
    return { webgpu: "ok", adapter: name, software: /swiftshader|llvmpipe|software/i.test(name) };
  }

  onLinkPort(take: TakePort): Promise<void> {
    this.#takePort = take;
    return Promise.resolve();
  }

  async start(...args: StartArgs): Promise<void> {
    const [{ origin, token, engine = "auto" }, onSnapshot] = args;
    const send = throttled(onSnapshot);
    let compute: Compute;
    try {
      compute = await openCompute(engine, { openGpu: () => openDevice({ provider: "builtin" }), notes });
    } catch (error) {
      const phase: TabPhase = error instanceof ShoalError && error.code === "no-adapter"
        ? "device-lost"
        : "kicked";
      return send({ ...EMPTY, phase, reason: messageOf(error) });
    }
    this.#states ??= await openSavedStates(openOpfsFolder, { bytesMax: STATE_BYTES_MAX });
    const peer = new Peer({
      states: this.#states,
      ...{ origin, token, runtime: "tab", memoryBytes: MEMORY_BYTES },
      ...compute,
      createHost: (selfId, relay, ticket) => new PortHost(this.#channel(selfId, ticket), relay),
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
    await this.start(...this.#lending);
    // The owner's wish outlives the page's absence.
    if (this.#paused) this.#peer?.pause();
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
