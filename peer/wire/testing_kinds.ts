// For tests only: the kinds of values that docs/protocol.md names, each with what just fits and what just does not. The bounds
// are written out, so that a changed constant shows.

const STAGE_TIMES = {
  cut: 0,
  stage: 256,
  microBatches: 1,
  forwardMs: 0,
  backwardMs: 1,
  weightGradMs: 2,
  waitMs: 3,
  decodeMs: 0,
  encodeMs: 4.5,
  sendMs: 1,
};
const LINK_FIGURES = { peer: "x", rttMs: 0.5, upBytesPerS: 0, path: "relay" };
const TRACED_OP = { kind: "W", stage: 256, microBatch: 256, startUs: 0, endUs: 4_294_967_295, waitUs: 0 };

/** What docs/protocol.md says about each kind of value: what just fits, and what just does not. */
export const KINDS: Record<string, { fits: unknown[]; not: unknown[] }> = {
  count: { fits: [0, 4_294_967_295], not: [-1, 1.5, 4_294_967_296, NaN, "1", null] },
  small: { fits: [0, 256], not: [-1, 0.5, 257, "1", true] },
  measure: { fits: [0, 1e300], not: [-0.001, Infinity, NaN, "1", []] },
  number: { fits: [-1e300, 1e300], not: [Infinity, -Infinity, NaN, "1", {}] },
  text: { fits: ["", "x".repeat(512)], not: ["x".repeat(513), 1, null] },
  token: { fits: ["", "x".repeat(128)], not: ["x".repeat(129), 1] },
  id: { fits: ["x", "x".repeat(64)], not: ["", "x".repeat(65), 1, {}] },
  blob: { fits: ["", "x".repeat(65_536)], not: ["x".repeat(65_537), 1] },
  mark: {
    fits: ["x".repeat(16), "a-Z_9".repeat(12)],
    not: ["x".repeat(15), "x".repeat(65), "x".repeat(16) + "=", 1],
  },
  flag: { fits: [true, false], not: [0, "true", null] },
  Resume: {
    fits: [{ peer: "x", ticket: "", epoch: "e".repeat(64) }],
    not: [
      ...[{}, null, "x", [], { ticket: "t", epoch: "e" }, { peer: "x", epoch: "e" }, {
        peer: "x",
        ticket: "t",
      }],
      ...[{ peer: "", ticket: "t", epoch: "e" }, { peer: "x", ticket: "t".repeat(129), epoch: "e" }],
      { peer: "x", ticket: "t", epoch: "" },
    ],
  },
  Have: {
    fits: [{ cut: 0, stages: [] }, { cut: 1, stages: Array(256).fill({ stage: 256, step: 9, hash: "h" }) }],
    not: [
      ...[{}, null, [], { cut: -1, stages: [] }, { cut: 1, stages: {} }, { cut: 1, stages: [7] }],
      { cut: 1, stages: Array(257).fill({ stage: 0, step: 9, hash: "h" }) },
      { cut: 1, stages: [{ stage: 257, step: 9, hash: "h" }] },
      { cut: 1, stages: [{ stage: 0, step: 0.5, hash: "h" }] },
      { cut: 1, stages: [{ stage: 0, step: 1, hash: "" }] },
      { cut: 1, stages: [{ stage: 0, step: 1, hash: "h", logged: 1 }] },
    ],
  },
  "list of small": {
    fits: [[], [0, 256], Array(256).fill(7)],
    not: [Array(257).fill(7), [257], ["1"], {}, 1],
  },
  "list of number": {
    fits: [[], [-1e300, 0], Array(256).fill(0.5)],
    not: [Array(257).fill(0.5), [NaN], [Infinity], ["1"], {}, null],
  },
  "list of State": {
    fits: [[], Array(256).fill({ firstLayer: 0, endLayer: 256, step: 9, hash: "h" })],
    not: [
      ...[Array(257).fill({ firstLayer: 0, endLayer: 1, step: 9, hash: "h" }), {}, null, [7]],
      ...[[{ firstLayer: 257, endLayer: 1, step: 9, hash: "h" }], [{ firstLayer: 0, endLayer: 1, step: 9 }]],
    ],
  },
  OpMs: {
    fits: [{ forward: 0, backward: 1e300, weightGrad: 0.5 }],
    not: [{}, null, [], 1, { forward: 1, backward: 1 }, { forward: -1, backward: 1, weightGrad: 1 }],
  },
  "list of StageTimes": {
    fits: [[], Array(64).fill(STAGE_TIMES)],
    not: [
      ...[Array(65).fill(STAGE_TIMES), {}, null, [7], [{ ...STAGE_TIMES, stage: 257 }]],
      ...[[{ ...STAGE_TIMES, microBatches: 0.5 }], [{ ...STAGE_TIMES, waitMs: -1 }]],
      [{ ...STAGE_TIMES, cut: -1 }],
      ...["decodeMs", "encodeMs", "sendMs"].map((name) => [{ ...STAGE_TIMES, [name]: -1 }]),
      ...["forwardMs", "backwardMs", "weightGradMs"].map((name) => [{ ...STAGE_TIMES, [name]: NaN }]),
    ],
  },
  "list of LinkFigures": {
    fits: [[], Array(64).fill(LINK_FIGURES), [{ ...LINK_FIGURES, path: "turn" }]],
    not: [
      ...[Array(65).fill(LINK_FIGURES), {}, null, ["x"], [{ ...LINK_FIGURES, path: "tube" }]],
      ...[[{ ...LINK_FIGURES, peer: "" }], [{ ...LINK_FIGURES, rttMs: -1 }]],
      [{ ...LINK_FIGURES, upBytesPerS: Infinity }],
    ],
  },
  LinkFigures: {
    fits: [LINK_FIGURES],
    not: [{}, null, [], "x", { ...LINK_FIGURES, path: "tube" }, { ...LINK_FIGURES, rttMs: -1 }],
  },
  "list of TracedOp": {
    fits: [[], Array(4_096).fill(TRACED_OP)],
    not: [
      ...[Array(4_097).fill(TRACED_OP), {}, null, [[]], [{ ...TRACED_OP, kind: "X" }]],
      ...[[{ ...TRACED_OP, stage: 257 }], [{ ...TRACED_OP, microBatch: -1 }]],
      ...["startUs", "endUs", "waitUs"].map((name) => [{ ...TRACED_OP, [name]: 0.5 }]),
    ],
  },
  '"tab" or "deno"': { fits: ["tab", "deno"], not: ["node", "", 1, "constructor"] },
};
