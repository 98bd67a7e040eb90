// The tab's worker: session, core, exact arithmetic and GPU engine, away from the page's thread. Speaks Comlink with
// browser.ts and a plain port for links. Nothing is computed before start(), which follows the owner's click.
import * as Comlink from "comlink";
import { createWgslEngine } from "./engine/wgsl.ts";
import { type GpuDevice, openDevice } from "./gpu/device.ts";
import { PortHost } from "./net/host_port.ts";
import { Peer } from "./peer.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";
import type { TabInspection, TabPeer, TabPhase, TabSnapshot } from "./wire/status.ts";

/** Pages are told at most this often. */
const SNAPSHOT_MS = 250;
/** First guess of what a tab may use of a device; the planner lowers it on failure. */
const MEMORY_BYTES = 1_000_000_000;

/** Beside the page's contract: where to send the page's end of each session's link port. */
export interface WorkerApi extends TabPeer {
  onLinkPort(take: (selfId: string, port: MessagePort) => void): Promise<void>;
}

class TabWorker implements WorkerApi {
  #peer: Peer | null = null;
  #takePort: ((selfId: string, port: MessagePort) => void) | null = null;

  async inspect(): Promise<TabInspection> {
    if (!("gpu" in navigator)) return { webgpu: "missing", adapter: "", software: false };
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (adapter === null) return { webgpu: "no-adapter", adapter: "", software: false };
    const { vendor, architecture, description } = adapter.info;
    const name = description || [vendor, architecture].filter(Boolean).join(" ") || "an unnamed adapter";
    return { webgpu: "ok", adapter: name, software: /swiftshader|llvmpipe|software/i.test(name) };
  }

  onLinkPort(take: (selfId: string, port: MessagePort) => void): Promise<void> {
    this.#takePort = take;
    return Promise.resolve();
  }

  async start(
    options: { origin: string; token: string },
    onSnapshot: (snapshot: TabSnapshot) => void,
  ): Promise<void> {
    const send = throttled(onSnapshot);
    let gpu: GpuDevice;
    try {
      gpu = await openDevice({ provider: "builtin" });
    } catch (error) {
      const phase: TabPhase = error instanceof ShoalError && error.code === "no-adapter"
        ? "device-lost"
        : "kicked";
      return send({ ...EMPTY, phase, reason: messageOf(error) });
    }
    const peer = new Peer({
      ...options,
      ...{
        runtime: "tab",
        adapter: gpu.adapterName,
        engine: `wgsl (${gpu.provider})`,
        memoryBytes: MEMORY_BYTES,
      },
      deviceLost: gpu.lost,
      createEngine: (build) => createWgslEngine(gpu, build),
      createHost: (selfId, relay) => new PortHost(this.#channel(selfId), relay),
      onChange: send,
    });
    this.#peer = peer;
    void peer.run().then(() => gpu.destroy());
  }

  /** One end stays here, the other goes to the page; messages wait in the port until it is served. */
  #channel(selfId: string): MessagePort {
    const { port1, port2 } = new MessageChannel();
    this.#takePort?.(selfId, Comlink.transfer(port2, [port2]));
    return port1;
  }

  pause(): Promise<void> {
    return Promise.resolve(this.#peer?.pause());
  }

  resume(): Promise<void> {
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
  ...{ links: { direct: 0, relayed: 0 }, losses: [], sample: null },
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
