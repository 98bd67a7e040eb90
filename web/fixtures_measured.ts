// Measured figures for the fixtures: what peers tell of operations and links, and traced steps: usual, first, with very many
// operations, and of a schedule that gives each peer two stages. Pure and fixed.
import type { LinkStatus, PeerStatus, RunStatus } from "../peer/wire/status.ts";
import { peers, stages } from "./fixtures_data.ts";
import { tracedStep } from "./fixtures_trace.ts";
import type { AdminModel } from "./view_model_admin.ts";

const forwardMs = { "tab-4f21": 22, "deno-81c0": 24, "tab-09ae": 12, "tab-c377": 13, "deno-1d5b": 9.5 };

function linkOf(peer: string, index: number, path: LinkStatus["path"] = "direct"): LinkStatus {
  return { peer, rttMs: 38.4 + 7 * index, upBytesPerS: 2.4e6 - index * 3e5, downBytesPerS: 1.1e6, path };
}

function measured(peer: PeerStatus): PeerStatus {
  const forward = forwardMs[peer.id as keyof typeof forwardMs];
  if (forward === undefined || peer.stage === null) return peer;
  const times = { forwardMs: forward, backwardMs: forward * 1.4, weightGradMs: forward * 1.1, waitMs: 4.2 };
  const others = Object.keys(forwardMs).filter((id) => id !== peer.id);
  const linkFigures = others.map((id, index) => linkOf(id, index, index === 3 ? "relay" : "direct"));
  linkFigures.push({ ...linkOf("tab-77e2", 0, "turn"), upBytesPerS: 0, downBytesPerS: 0 });
  const parts = { encodeMs: 2.4, decodeMs: 0.3, sendMs: 0.6 };
  const ops = [{ cut: 5, stage: peer.stage, microBatches: 5_456, ...times, ...parts }];
  return { ...peer, ops, linkFigures, linksPresumed: 2 };
}

const usual = tracedStep(stages, { step: 341, microBatches: 16, predictedMs: 812, forwardMs });
const { lanes, ...numbers } = usual;
const waits = lanes.map(({ peer, waitMs, linkWaitMs }) => ({ peer, waitMs, linkWaitMs }));

export const measuredStatus: Partial<RunStatus> = {
  peers: peers.map(measured),
  lastStep: { ...numbers, waits },
};

export const tracedUsual: Partial<AdminModel> = { trace: usual };

/** The first step: the simulator knew no times yet. */
export const tracedFirst: Partial<AdminModel> = { trace: { ...usual, step: 1, predictedMs: null } };

const most = Array.from({ length: 256 }, (_, m) => m);

/** More operations than can be drawn, and some that the peers could not keep. */
export const tracedMany: Partial<AdminModel> = { trace: manyOps(), held: true };

function manyOps() {
  const busy = stages.map((stage) => ({
    ...stage,
    replicas: stage.replicas.slice(0, 1).map(({ peer }) => ({ peer, microBatches: most })),
  }));
  const trace = tracedStep(busy, { step: 12, microBatches: 256, predictedMs: 9_800, forwardMs });
  return { ...trace, lanes: trace.lanes.map((lane, i) => i === 0 ? { ...lane, dropped: 40 } : lane) };
}

/** Two peers, each with a stage of either half, as in a schedule that runs both ways. */
export const tracedTwice: Partial<AdminModel> = { trace: twice() };

function twice() {
  const owners = ["tab-4f21", "tab-09ae", "tab-09ae", "tab-4f21"];
  const own = stages.map((stage, i) => ({
    ...stage,
    replicas: [{ peer: owners[i]!, microBatches: [0, 1, 2, 3, 4, 5] }],
  }));
  return tracedStep(own, { step: 77, microBatches: 6, predictedMs: 981, forwardMs });
}
