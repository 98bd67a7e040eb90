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
