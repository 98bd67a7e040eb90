// The WebRTC stack of a browser: its own classes, and simple-peer's self-contained bundle (the plain entry
// needs Node's streams). Only the page imports this file; RTCPeerConnection does not exist in workers.
/// <reference path="./simplepeer.d.ts" />
import SimplePeer from "simple-peer/simplepeer.min.js";
import type { WebRtcStack } from "./simple_peer.ts";

export const browserStack: WebRtcStack = { SimplePeer };
