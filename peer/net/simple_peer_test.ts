// The acceptance suite over real WebRTC: two peers in one process, signals handed over directly.
import assert from "node:assert/strict";
import { LINK_CASES, type LinkPair, runLinkCase, untilOpen } from "./link_suite.ts";
import { SIGNAL_CHARS_MAX, SimplePeerLink } from "./simple_peer.ts";
import { denoStack } from "./wrtc_deno.ts";

/** The native stack frees its threads and simple-peer its timers some time after a close. */
const QUIET_MS = 400;

function quiet(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, QUIET_MS));
}

async function makePair(): Promise<LinkPair> {
  const links: { a: SimplePeerLink; b: SimplePeerLink } = {
    a: new SimplePeerLink({
      remote: "b",
      initiator: true,
      iceServers: [],
      stack: denoStack,
      onsignal: (data) => links.b.signal(data),
    }),
    b: new SimplePeerLink({
      remote: "a",
      initiator: false,
      iceServers: [],
      stack: denoStack,
      onsignal: (data) => links.a.signal(data),
    }),
  };
  const { a, b } = links;
  await Promise.all([untilOpen(a), untilOpen(b)]);
  return {
    a,
    b,
    inject: (bytes) => a.channel!.send(bytes),
    dispose: async () => {
      a.close("test over");
      b.close("test over");
      await quiet();
    },
  };
}

// The native addon keeps handles that the sanitizers take for leaks of the test.
const options = { sanitizeOps: false, sanitizeResources: false };

for (const linkCase of LINK_CASES) {
  Deno.test(`simple-peer: ${linkCase.name}`, options, () => runLinkCase(linkCase, makePair));
}

Deno.test("simple-peer: a connection that nobody answers closes with link-timeout", options, async () => {
  const link = new SimplePeerLink({
    remote: "b",
    initiator: true,
    iceServers: [],
    stack: denoStack,
    onsignal: () => {},
    connectTimeoutMs: 100,
  });
  const reason = await new Promise<string>((resolve) => {
    link.onstate = (state, text) => state === "closed" && resolve(text);
  });
  assert.match(reason, /^link-timeout: no direct path to b in 100 ms/);
  await quiet();
});

Deno.test("simple-peer: a malformed signal closes with bad-message", options, async () => {
  const media = '{"transceiverRequest":{"kind":"video"}}';
  for (const text of ["", "null", "[]", "{}", media, '{"type":"offer"}', "x".repeat(SIGNAL_CHARS_MAX + 1)]) {
    const link = new SimplePeerLink({
      remote: "b",
      initiator: false,
      iceServers: [],
      stack: denoStack,
      onsignal: () => {},
    });
    link.signal(text);
    assert.equal(link.state, "closed");
    assert.match(link.reason, /^bad-message/);
  }
  await quiet();
});

Deno.test("simple-peer: the path of a connection without servers is direct", options, async () => {
  const pair = await makePair();
  assert.equal(pair.a.stats().path, "direct");
  await pair.dispose();
});
