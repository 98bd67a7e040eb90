// Control messages: every message there and back, the tables of docs/protocol.md field by field, and a stranger's bytes,
// which must end in a coded refusal and never in an exception.
import { encode } from "@msgpack/msgpack";
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  CONTROL_BYTES_MAX,
  COORDINATOR_MESSAGE_TYPES,
  type CoordinatorMessage,
  decodeCoordinatorMessage,
  decodePeerMessage,
  encodeControl,
  PEER_MESSAGE_TYPES,
  type PeerMessage,
  PROTOCOL_VERSION,
  readTagged,
  TAG_CONTROL,
  TAG_RELAY,
  tagControl,
  tagRelay,
} from "./control.ts";
import type { Result } from "./errors.ts";
import type { ModelSpec, RunConfig } from "./run.ts";
import { KINDS } from "./testing_kinds.ts";

type PeerSamples = { [T in PeerMessage["type"]]: Required<Extract<PeerMessage, { type: T }>> };
type CoordinatorSamples = { [T in CoordinatorMessage["type"]]: Extract<CoordinatorMessage, { type: T }> };

const FUZZ = { seed: 20_260, numRuns: 400 };

/** One of each, with every optional field; the type checker demands that none is forgotten. */
const PEER_SAMPLES: PeerSamples = {
  hello: {
    ...{ type: "hello", version: PROTOCOL_VERSION, token: "t", runtime: "tab", adapter: "a", engine: "e" },
    name: "n",
    mark: "0123456789abcdef",
    resume: { peer: "tab-1", ticket: "t", epoch: "e" },
    have: { cut: 1, stages: [{ stage: 0, step: 5, hash: "h", logged: true }] },
  },
  measured: {
    type: "measured",
    blockMs: 1.5,
    memoryBytes: 4e9,
    gpuOptimizer: true,
    kernels: "nn quads 16x16 3.1 GFLOP/s",
    opMs: { forward: 0.25, backward: 0.5, weightGrad: 0.75 },
    fixedMs: 0.5,
    sequences: 8,
    probes: true,
    writes: true,
  },
  heartbeat: {
    ...{ type: "heartbeat", stepMs: 0, bytesUp: 2 ** 40, bytesDown: 1, direct: 2, relayed: 0, hidden: true },
    ...{
      recomputed: 3,
      recoveryBytes: 4e6,
      retainedBytes: 5e6,
      fenced: 6,
      snapshotBytes: 7e6,
      snapshotSpared: 8,
    },
    ops: [{ cut: 2, stage: 1, microBatches: 9, forwardMs: 1.5, backwardMs: 3, weightGradMs: 2, waitMs: 0 }],
    links: [{ peer: "tab-2", rttMs: 40.5, upBytesPerS: 2.5e6, path: "direct" }],
  },
  probed: {
    type: "probed",
    peer: "tab-2",
    link: { peer: "tab-2", rttMs: 40.5, upBytesPerS: 2.5e6, path: "direct" },
  },
  signal: { type: "signal", peer: "tab-1", data: "7|offer" },
  ready: { type: "ready", gen: 0xffffffff },
  logged: {
    ...{
      type: "logged",
      cut: 1,
      gen: 4,
      step: 2,
      stage: 3,
      hash: "h",
      gradNormSq: 0.5,
      saturated: 5,
      nonFinite: 6,
    },
  },
  losses: { type: "losses", cut: 1, step: 2, stage: 3, microBatches: [0, 255], losses: [-1.5, 2.25] },
  evaluated: { type: "evaluated", gen: 1, step: 2, stage: 3, lossSum: 2.25, lossCount: 4 },
  applied: { type: "applied", cut: 1, gen: 4, step: 2, stage: 3, hash: "h" },
  warm: { type: "warm", cut: 1, gen: 4, stage: 3 },
  "want-total": { type: "want-total", cut: 1, step: 2, stage: 3 },
  "no-total": { type: "no-total", cut: 1, step: 2, stage: 3, to: "tab-4" },
  "want-state": { type: "want-state", cut: 1, stage: 3, reason: "404" },
  kept: {
    ...{ type: "kept", step: 2, firstLayer: 0, endLayer: 1, k: 3, index: 3, totalBytes: 9e6, hash: "h" },
    ...{ bytes: 3e6, spared: 7 },
  },
  unkept: { type: "unkept", step: 2, firstLayer: 0, endLayer: 1, reason: "no room" },
  exported: { type: "exported", cut: 1, step: 2, stage: 3, hash: "h", own: true },
  "restore-failed": { type: "restore-failed", cut: 1, step: 2, stage: 3, reason: "a shard is missing" },
  offer: { type: "offer", states: [{ firstLayer: 0, endLayer: 1, step: 2, hash: "h" }] },
  "link-lost": { type: "link-lost", gen: 1, peer: "deno-2", reason: "" },
  trace: {
    ...{ type: "trace", gen: 4, step: 2, saidUs: 9_000, dropped: 0 },
    ops: [{ kind: "F", stage: 1, microBatch: 3, startUs: 10, endUs: 20, waitUs: 5 }],
  },
  "write-open": { type: "write-open", edition: 4, stage: 1 },
  "write-failed": { type: "write-failed", edition: 4, stage: 1, reason: "no room" },
  wrote: { type: "wrote", edition: 4, text: 2, position: 17, token: 5 },
  leave: { type: "leave", reason: "asked" },
  pause: { type: "pause", paused: false },
  goodbye: { type: "goodbye", reason: "its page was closed" },
};

const FILE = { stage: 1, firstLayer: 1, endLayer: 2, embed: false, head: true, bytes: 9, hash: "h" };
const VIEW = {
  ...{ gen: 2, cut: 1, baseStep: 0, schedule: "dynamic" as const },
  stages: [{
    ...{ index: 0, firstLayer: 0, endLayer: 2, embed: true, head: true, inflight: 3 },
    ...{ recompute: "attention" as const, replicas: [{ peer: "a", microBatches: [0, 1] }] },
  }],
  ...{ codecForward: "raw32" as const, codecBackward: "f16s" as const },
};

const COORDINATOR_SAMPLES: CoordinatorSamples = {
  welcome: {
    ...{ type: "welcome", peer: "tab-1", incarnation: 1, ticket: "x", heartbeatMs: 500 },
    ...{ epoch: "e", committed: 7, resumed: true },
    corpus: { tokens: 9, bytesPerToken: 1, hash: "00" },
    config: { n_layer: 4 } as RunConfig,
    spec: { n_layer: 4 } as ModelSpec,
  },
  refused: { type: "refused", code: "bad-token", reason: "no" },
  view: { type: "view", view: VIEW, source: null, epoch: "e" },
  open: { type: "open", gen: 1, step: 2, pass: "train", trace: true, ahead: true, lossScale: [12, 0] },
  commit: { type: "commit", cut: 1, step: 2, gradNormSq: 0.1, hashes: ["h0", "h1"], skip: true },
  snapshot: { type: "snapshot", cut: 1, step: 2, stage: 3 },
  adopt: { type: "adopt", cut: 1, step: 2, stage: 3, hash: "h" },
  "send-total": { type: "send-total", cut: 1, step: 2, stage: 3, to: "tab-2" },
  state: { type: "state", cut: 1, step: 2, stage: 1, file: FILE },
  keep: { type: "keep", order: { order: "link", peer: "tab-2" } },
  "snapshot-out": {
    ...{ type: "snapshot-out", cut: 1, step: 2, stage: 3, k: 2, keepers: [{ peer: "tab-2", index: 0 }] },
  },
  restore: {
    ...{ type: "restore", cut: 1, step: 2, stage: 1, firstLayer: 1, endLayer: 2, hash: "h" },
    snapshot: { step: 2, firstLayer: 1, endLayer: 2, k: 2, totalBytes: 9, hash: "h" },
    keepers: [{ peer: "tab-2", index: 0 }],
  },
  probe: { type: "probe", peer: "tab-2" },
  write: {
    type: "write",
    order: { order: "rows", edition: 4, text: 2, slot: 1, position: 0, tokens: [5, 6], draw: true },
  },
  signal: { type: "signal", peer: "tab-2", data: "7|answer" },
  status: {
    ...{ type: "status", state: "training", reason: "r", step: 3, groupStepMs: 10.5 },
    ...{ losses: [{ step: 1, train: 4.5 }], sample: null },
  },
  kicked: { type: "kicked", reason: "silent", mayReturn: true },
  done: { type: "done", reason: "finished" },
};

function refused(result: Result<unknown>, label: string): void {
  assert.ok(!result.ok, `${label} was accepted`);
  assert.equal(result.code, "bad-message", label);
  assert.ok(result.reason.length > 0 && result.reason.length < 400, label);
}

Deno.test("control: every message of a peer comes back as it was", () => {
  assert.deepEqual(Object.keys(PEER_SAMPLES), PEER_MESSAGE_TYPES);
  for (const message of Object.values(PEER_SAMPLES)) {
    assert.deepEqual(decodePeerMessage(encodeControl(message)), { ok: true, value: message });
  }
});

Deno.test("control: every message of the coordinator comes back as it was", () => {
  assert.deepEqual(Object.keys(COORDINATOR_SAMPLES), COORDINATOR_MESSAGE_TYPES);
  for (const message of Object.values(COORDINATOR_SAMPLES)) {
    assert.deepEqual(decodeCoordinatorMessage(encodeControl(message)), { ok: true, value: message });
  }
});

Deno.test("control: what a first hello leaves out is not sent, and an unknown field is ignored", () => {
  const { name: _, resume: _resume, have: _have, ...hello } = PEER_SAMPLES.hello;
  const decoded = decodePeerMessage(encode({ ...hello, colour: "blue" }));
  assert.deepEqual(decoded, { ok: true, value: hello });
});

interface Row {
  type: string;
  fields: { name: string; optional: boolean; kind: string }[];
}

function tableOf(heading: string): Row[] {
  const page = Deno.readTextFileSync(new URL("../../docs/protocol.md", import.meta.url));
  const section = page.split(`\n### ${heading}\n`)[1]?.split("\n### ")[0] ?? "";
  return [...section.matchAll(/^\| `([a-z-]+)` \| (.+?) \| (.+) \|$/gm)].map((
    [, type = "", fields = ""],
  ) => ({
    type,
    fields: [...fields.matchAll(/`(\w+)(\??): ([^`]+)`/g)].map(([, name = "", optional, kind = ""]) => ({
      ...{ name, optional: optional === "?", kind },
    })),
  }));
}

Deno.test("control: docs/protocol.md lists what a peer may say, field by field and bound by bound", () => {
  const rows = tableOf("From a peer");
  assert.deepEqual(rows.map((row) => row.type), PEER_MESSAGE_TYPES);
  for (const { type, fields } of rows) {
    const sample = PEER_SAMPLES[type as PeerMessage["type"]] as Record<string, unknown>;
    assert.deepEqual(["type", ...fields.map((field) => field.name)].sort(), Object.keys(sample).sort(), type);
    for (const { name, optional, kind } of fields) {
      const { fits, not } = KINDS[kind] ?? assert.fail(`${type}.${name}: unknown kind ${kind}`);
      for (const value of fits) {
        const decoded = decodePeerMessage(encode({ ...sample, [name]: value }));
        assert.ok(decoded.ok, `${type}.${name} = ${String(value).slice(0, 20)} was refused`);
      }
      for (const value of not) {
        refused(decodePeerMessage(encode({ ...sample, [name]: value })), `${type}.${name}`);
      }
      const { [name]: _, ...without } = sample;
      assert.equal(decodePeerMessage(encode(without)).ok, optional, `${type} without ${name}`);
    }
  }
});

Deno.test("control: docs/protocol.md lists what the coordinator may say", () => {
  const rows = tableOf("From the coordinator");
  assert.deepEqual(rows.map((row) => row.type), COORDINATOR_MESSAGE_TYPES);
  for (const { type, fields } of rows) {
    const sample = COORDINATOR_SAMPLES[type as CoordinatorMessage["type"]];
    assert.deepEqual(["type", ...fields.map((field) => field.name)].sort(), Object.keys(sample).sort(), type);
  }
});

/** Either a value or a refusal with a code; anything thrown fails the property. */
function judge(bytes: Uint8Array): void {
  for (const result of [decodePeerMessage(bytes), decodeCoordinatorMessage(bytes), readTagged(bytes)]) {
    if (!result.ok) assert.equal(result.code, "bad-message");
  }
}

Deno.test("control: random bytes, truncations and mutations never throw", () => {
  const samples = [...Object.values(PEER_SAMPLES), ...Object.values(COORDINATOR_SAMPLES)].map(encodeControl);
  fc.assert(fc.property(fc.uint8Array({ maxLength: 300 }), judge), FUZZ);
  fc.assert(
    fc.property(fc.constantFrom(...samples), fc.nat(), fc.nat(255), (sample, at, byte) => {
      const cut = sample.slice(0, at % sample.length);
      refused(decodePeerMessage(cut), "a truncated message");
      refused(decodeCoordinatorMessage(cut), "a truncated message");
      const mutated = sample.slice();
      mutated[at % sample.length] = byte;
      judge(mutated);
    }),
    FUZZ,
  );
});

Deno.test("control: any map of any values, hostile keys included, never throws", () => {
  const keys = [
    "type",
    "constructor",
    "toString",
    "valueOf",
    "hasOwnProperty",
    "then",
    "gen",
    "step",
    "hash",
  ];
  const value = fc.oneof(
    fc.constantFrom<unknown>(...PEER_MESSAGE_TYPES, "__proto__", "constructor", "toString"),
    fc.anything({ maxDepth: 2 }).filter(isPackable),
    fc.dictionary(fc.constantFrom(...keys), fc.integer()),
  );
  const map = fc.dictionary(fc.constantFrom(...keys), value);
  fc.assert(fc.property(map, (it) => judge(encode(it))), { ...FUZZ, numRuns: 1500 });
});

function isPackable(value: unknown): boolean {
  try {
    encode(value);
    return true;
  } catch {
    return false;
  }
}

Deno.test("control: hostile types are refused by name", () => {
  const hostile: unknown[] = [
    ...[{ type: { toString: 1, valueOf: 1 } }, { type: ["hello"] }, { type: null }, { type: "__proto__" }],
    ...[{ type: "constructor" }, {}, [], ["hello"], null, "hello", 7, true, { type: new Uint8Array(1) }],
  ];
  for (const value of hostile) {
    refused(decodePeerMessage(encode(value)), JSON.stringify(value));
    refused(decodeCoordinatorMessage(encode(value)), JSON.stringify(value));
  }
  // {"__proto__": {"type": "ready"}, "gen": 1} must not borrow its type from a prototype.
  const key = encode("__proto__");
  const bytes = [0x82, ...key, ...encode({ type: "ready" }), ...encode("gen"), ...encode(1)];
  refused(decodePeerMessage(Uint8Array.from(bytes)), "__proto__ as a key");
  assert.equal(({} as Record<string, unknown>)["type"], undefined);
});

Deno.test("control: oversized messages are refused before they are read, declared sizes before they are allocated", () => {
  refused(decodePeerMessage(new Uint8Array(CONTROL_BYTES_MAX + 1)), "one byte too many");
  refused(decodeCoordinatorMessage(new Uint8Array(CONTROL_BYTES_MAX + 1)), "one byte too many");
  const heads = { array: 0xdd, map: 0xdf, string: 0xdb, binary: 0xc6, extension: 0xc9 };
  for (const [name, head] of Object.entries(heads)) {
    refused(decodePeerMessage(Uint8Array.of(head, 0xff, 0xff, 0xff, 0xff)), `4 GiB ${name}`);
  }
  const nested = new Uint8Array(CONTROL_BYTES_MAX).fill(0x91);
  refused(decodePeerMessage(nested), "a million nested arrays");
  // Three bytes per level, and half a megabyte for the decoder at each of them.
  const greedy = Uint8Array.from({ length: 30_000 }, (_, i) => i % 3 === 0 ? 0xdc : 0xff);
  refused(decodePeerMessage(greedy), "ten thousand nested arrays of 65,535 places");
});

Deno.test("control: tags say what follows", () => {
  const message = PEER_SAMPLES.applied;
  const control = readTagged(tagControl(message));
  assert.ok(control.ok && control.value.kind === "control");
  assert.deepEqual(decodePeerMessage(control.value.bytes), { ok: true, value: message });
  fc.assert(
    fc.property(
      fc.string({ minLength: 1, maxLength: 20 }),
      fc.uint8Array({ maxLength: 50 }),
      (peer, bytes) => {
        const wellFormed = new TextDecoder().decode(new TextEncoder().encode(peer));
        const value = { kind: "relay" as const, peer: wellFormed, bytes };
        assert.deepEqual(readTagged(tagRelay(peer, bytes)), { ok: true, value });
      },
    ),
    FUZZ,
  );
});

Deno.test("control: a wrong tag or a relay without its receiver is refused", () => {
  const bad = [[], [2], [255, 1, 65], [TAG_RELAY], [TAG_RELAY, 0], [TAG_RELAY, 0, 65], [TAG_RELAY, 2, 65]];
  for (const bytes of bad) refused(readTagged(Uint8Array.from(bytes)), `[${bytes}]`);
  const empty = readTagged(Uint8Array.of(TAG_CONTROL));
  assert.ok(empty.ok && empty.value.kind === "control");
  refused(decodePeerMessage(empty.value.bytes), "a control message of no bytes");
});
