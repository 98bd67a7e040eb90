// What the computers that are connected now have measured of themselves, for a form that supposes some of a new run's. Pure. A median, so
// that one server among twenty laptops is not taken for all of them. What must stay true: a run's shapes do not show in a speed.
import { blockMsOf } from "../core/plan_request.ts";
import type { PeerRecord } from "../core/run_state.ts";
import { operationFlops } from "../plan/estimate.ts";
import {
  GFLOPS_MAX,
  GFLOPS_MIN,
  type MeasuredOffer,
  OFFER_BYTES_MAX,
  OFFER_BYTES_MIN,
} from "../../peer/wire/hub.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";

export interface MeasuredRun {
  config: RunConfig;
  spec: ModelSpec;
  peers: Readonly<Record<string, PeerRecord>>;
}

/** F, B and W of one layer, of which each takes about the same. */
const OPERATIONS = 3;

/** Null while nobody has measured anything. */
export function measuredOffer(runs: readonly MeasuredRun[]): MeasuredOffer | null {
  const speeds: number[] = [], offers: number[] = [];
  for (const { config, spec, peers } of runs) {
    const flops = OPERATIONS * operationFlops(config, spec);
    for (const peer of Object.values(peers).filter((it) => it.blockMs > 0 && !it.leaving)) {
      speeds.push(flops / (blockMsOf(peer) / 1000) / 1e9);
      offers.push(peer.memoryBytes);
    }
  }
  if (speeds.length === 0) return null;
  return {
    peers: speeds.length,
    gflops: Number(within(median(speeds), GFLOPS_MIN, GFLOPS_MAX).toPrecision(3)),
    offerBytes: Math.round(within(median(offers), OFFER_BYTES_MIN, OFFER_BYTES_MAX)),
  };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[(sorted.length - 1) >> 1]!;
}

function within(value: number, least: number, most: number): number {
  return Math.min(most, Math.max(least, value));
}
