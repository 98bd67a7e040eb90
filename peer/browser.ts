// The page's half of a tab peer: starts the worker, serves WebRTC links to it, and offers the page the one TabPeer
// interface. Loaded only after the first screen, so that a visitor downloads no engine.
import * as Comlink from "comlink";
import { createLinkHost } from "./net/host.ts";
import { serveHost } from "./net/host_port.ts";
import { simplePeerLinks } from "./net/simple_peer.ts";
import { browserStack } from "./net/webrtc_browser.ts";
import type { TabPeer } from "./wire/status.ts";
import type { WorkerApi } from "./worker.ts";

/** Starts the worker; it computes nothing until start(). */
export function openTabPeer(): TabPeer {
  const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "shoal peer" });
  const remote = Comlink.wrap<WorkerApi>(worker);
  let served: { close(reason: string): void } | null = null;
  let farewell: string | null = null;
  const take = (selfId: string, port: MessagePort, ticket: string) => {
    served?.close("a new session begins");
    farewell = JSON.stringify({ peer: selfId, ticket });
    served = serveHost(
      port,
      (relay) => createLinkHost({ selfId, relay, createLink: simplePeerLinks(browserStack) }),
    );
  };
  const ready = remote.onLinkPort(Comlink.proxy(take));
  return {
    inspect: () => remote.inspect(),
    start: async (options, onSnapshot) => {
      await ready;
      await remote.start(options, Comlink.proxy(onSnapshot));
    },
    goodbye: () => {
      // The worker's own goodbye is the quickest unless it computes or is frozen with the page; the beacon needs nobody.
      const told = remote.goodbye();
      if (farewell !== null) navigator.sendBeacon("/api/goodbye", farewell);
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
  };
}
