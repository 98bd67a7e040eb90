// The WebRTC stack for Deno: simple-peer's plain entry over a native addon. Only the command-line peer
// imports this file; a browser bundle must never reach it. The addon opens its own sockets, beyond Deno's
// network permission.
import wrtc from "@roamhq/wrtc";
import SimplePeer from "simple-peer";
import type { WebRtcStack } from "./simple_peer.ts";

const { RTCPeerConnection, RTCSessionDescription, RTCIceCandidate } = wrtc;

export const denoStack: WebRtcStack = {
  SimplePeer,
  wrtc: { RTCPeerConnection, RTCSessionDescription, RTCIceCandidate },
};

/** The addon's threads end a little after close(); a process that exits before they have may crash. */
const NATIVE_CLOSE_MS = 1_000;

/** Resolves when it is safe to end the process after the last link was closed. */
export function nativeLinksClosed(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, NATIVE_CLOSE_MS));
}
