// The page's half of a tab peer: starts the worker, serves WebRTC links to it, holds them below the owner's rate, and offers
// the page the one TabPeer interface. Loaded only after the click, so that a visitor downloads no engine and runs nothing.
import * as Comlink from "comlink";
import { createLinkHost } from "./net/host.ts";
import { serveHost } from "./net/host_port.ts";
import { Pacer } from "./net/pacer.ts";
import { simplePeerLinks } from "./net/simple_peer.ts";
import { browserStack } from "./net/webrtc_browser.ts";
import { forgetBrowserNotes } from "./store/notes_browser.ts";
import { forgetOpfs } from "./store/folder_opfs.ts";
import type { TabPeer, TabSnapshot } from "./wire/status.ts";
import type { WorkerApi } from "./worker.ts";

/** Beside what a worker can do: what only its page knows or can end. */
export interface PagePeer extends TabPeer {
  /** Ends the worker and deletes what it has stored in this browser. */
  forget(): Promise<void>;
}

/** Starts the worker; it computes nothing until start(). */
export function openTabPeer(): PagePeer {
  const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "shoal peer" });
  const remote = Comlink.wrap<WorkerApi>(worker);
  const pacer = new Pacer();
  let served: { close(reason: string): void } | null = null;
  let farewell: string | null = null;
  let home = "";
  const take = (selfId: string, port: MessagePort, ticket: string) => {
    served?.close("a new session begins");
    farewell = JSON.stringify({ peer: selfId, ticket });
    // Some browsers are built or set up without WebRTC; their frames go over the coordinator from the first on.
    const direct = typeof RTCPeerConnection === "function";
    const createLink = direct ? simplePeerLinks(browserStack, { pacer }) : null;
    served = serveHost(port, (relay) => createLinkHost({ selfId, relay, createLink, pacer }));
  };
  const ready = remote.onLinkPort(Comlink.proxy(take));
  /** Of all links, those that are closed included, and of requests: what a person's line has carried. */
  const counted = (snapshot: TabSnapshot, http: { up: number; down: number }) => ({
    ...snapshot,
    bytesUp: pacer.up + http.up,
    bytesDown: pacer.down + http.down,
  });
  return {
    start: async (options, onSnapshot) => {
      home = options.origin;
      pacer.setRate(options.limits?.upBytesPerS ?? null);
      await ready;
      const show = async (snapshot: TabSnapshot) => onSnapshot(counted(snapshot, await remote.http()));
      await remote.start(options, Comlink.proxy(show));
    },
    setLimits: (limits) => {
      pacer.setRate(limits.upBytesPerS);
      return remote.setLimits(limits);
    },
    goodbye: () => {
      // The worker's own goodbye is the quickest unless it computes or is frozen with the page; the beacon needs nobody.
      const told = remote.goodbye();
      if (farewell !== null) navigator.sendBeacon(`${home}/api/goodbye`, farewell);
      served?.close("its page was closed");
      [farewell, served] = [null, null];
      return told;
    },
    comeBack: () => remote.comeBack(),
    pause: () => remote.pause(),
    resume: () => remote.resume(),
    finishAndLeave: () => remote.finishAndLeave(),
    leaveNow: () => remote.leaveNow(),
    setHidden: (hidden) => remote.setHidden(hidden),
    forget: async () => {
      worker.terminate();
      await Promise.allSettled([forgetOpfs(), forgetBrowserNotes()]);
    },
  };
}
