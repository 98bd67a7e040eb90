// The worker of data_channel.ts: a frame starts here in one tab and ends here in the other, as in a real peer. The two
// ways differ only in what lies between: a port to the page's links, or a data channel that was transferred here.
import * as Comlink from "comlink";
import { type Channel, ChannelLink } from "../peer/net/channel_link.ts";
import { PortHost } from "../peer/net/host_port.ts";

/** The first byte of a frame says what the other end does with it. */
const SINK = 0;
const ANSWER = 1;
const ECHO = 2;
const REPLY = 3;

const REMOTE = "other";

let send: (frame: Uint8Array) => void = () => {};
let onReply: () => void = () => {};
const opened = Promise.withResolvers<void>();

function receive(frame: Uint8Array): void {
  const order = frame[0];
  if (order === REPLY) onReply();
  else if (order === ANSWER) send(Uint8Array.of(REPLY));
  else if (order === ECHO) {
    frame[0] = REPLY;
    send(frame);
  }
}

function frameOf(bytes: number, order: number): Uint8Array {
  const frame = new Uint8Array(bytes);
  frame[0] = order;
  return frame;
}

function replied(): Promise<void> {
  return new Promise((resolve) => onReply = resolve);
}

function usePort(port: MessagePort, initiator: boolean, onSignal: (data: string) => void) {
  const host = new PortHost(port, () => {});
  host.onframe = (_, frame) => receive(frame);
  host.onstate = (_, state, reason) => {
    if (state === "open") opened.resolve();
    else if (state === "closed") opened.reject(new Error(`the link closed: ${reason}`));
  };
  host.onsignal = (_, data) => onSignal(data);
  send = (frame) => host.send(REMOTE, frame, 0);
  host.connect(REMOTE, { initiator, iceServers: [] });
  return Comlink.proxy((data: string) => host.signal(REMOTE, data));
}

function useChannel(channel: RTCDataChannel): void {
  const link = new ChannelLink({ remote: REMOTE, path: "direct", teardown: () => channel.close() });
  link.onframe = receive;
  send = (frame) => link.send(frame, 0);
  channel.binaryType = "arraybuffer";
  channel.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => link.receive(new Uint8Array(data));
  channel.onclose = () => link.failed("link-closed", "the channel closed");
  const ready = () => {
    link.opened(channel as unknown as Channel);
    opened.resolve();
  };
  if (channel.readyState === "open") ready();
  else channel.onopen = ready;
}

/** Milliseconds from handing over the first of `count` frames to the other worker's answer to the last. */
async function stream(count: number, bytes: number): Promise<number> {
  const frames = Array.from({ length: count }, (_, i) => frameOf(bytes, i === count - 1 ? ANSWER : SINK));
  const start = performance.now();
  const answer = replied();
  for (const frame of frames) send(frame);
  await answer;
  return performance.now() - start;
}

/** Milliseconds of each of `count` round trips of a frame, one after the other. */
async function echo(count: number, bytes: number): Promise<number[]> {
  const times: number[] = [];
  for (let i = 0; i < count; i++) {
    const frame = frameOf(bytes, ECHO);
    const start = performance.now();
    const answer = replied();
    send(frame);
    await answer;
    times.push(performance.now() - start);
  }
  return times;
}

const api = { usePort, useChannel, opened: () => opened.promise, stream, echo };

export type BenchWorker = typeof api;

Comlink.expose(api);
