// The page of data_channel.ts: connects its worker to the other tab's worker in one of the two ways, then only passes
// calls on. Signals leave through the binding `carrySignal` of the driving process.
import * as Comlink from "comlink";
import { createLinkHost } from "../peer/net/host.ts";
import { serveHost } from "../peer/net/host_port.ts";
import { simplePeerLinks } from "../peer/net/simple_peer.ts";
import { browserStack } from "../peer/net/webrtc_browser.ts";
import type { BenchWorker } from "./data_channel_worker.ts";

export type Way = "port" | "transferred";

/** Both ends name the channel alike, so that each can make and transfer it before it connects. */
const CHANNEL = { negotiated: true, id: 0, ordered: true } as const;

const worker = Comlink.wrap<BenchWorker>(
  new Worker(new URL("./data_channel_worker.ts", import.meta.url), { type: "module" }),
);

let take: (data: string) => unknown = () => {};

function carry(data: string): void {
  (globalThis as unknown as { carrySignal(data: string): void }).carrySignal(data);
}

async function connect(way: Way, initiator: boolean): Promise<void> {
  if (way === "port") await connectByPort(initiator);
  else await connectTransferred(initiator);
}

/** As peer/browser.ts and peer/worker.ts do it. */
async function connectByPort(initiator: boolean): Promise<void> {
  const { port1, port2 } = new MessageChannel();
  serveHost(port1, (relay) => {
    return createLinkHost({ selfId: "self", relay, createLink: simplePeerLinks(browserStack) });
  });
  take = await worker.usePort(Comlink.transfer(port2, [port2]), initiator, Comlink.proxy(carry));
}

async function connectTransferred(initiator: boolean): Promise<void> {
  const connection = new RTCPeerConnection({ iceServers: [] });
  const channel = connection.createDataChannel("shoal", CHANNEL);
  const moved = worker.useChannel(Comlink.transfer(channel, [channel]));
  connection.onicecandidate = ({ candidate }) => candidate && carry(JSON.stringify({ candidate }));
  take = (data) => takeSignal(connection, JSON.parse(data));
  await moved;
  if (initiator) await describe(connection);
}

async function describe(connection: RTCPeerConnection): Promise<void> {
  await connection.setLocalDescription();
  carry(JSON.stringify({ description: connection.localDescription }));
}

async function takeSignal(
  connection: RTCPeerConnection,
  { description, candidate }: { description?: RTCSessionDescriptionInit; candidate?: RTCIceCandidateInit },
): Promise<void> {
  if (candidate) return await connection.addIceCandidate(candidate);
  await connection.setRemoteDescription(description!);
  if (description!.type === "offer") await describe(connection);
}

const suite = {
  connect,
  signal: async (data: string) => void await take(data),
  opened: () => worker.opened(),
  stream: (count: number, bytes: number) => worker.stream(count, bytes),
  echo: (count: number, bytes: number) => worker.echo(count, bytes),
};

export type BenchTab = typeof suite;

Object.assign(globalThis, { suite });
