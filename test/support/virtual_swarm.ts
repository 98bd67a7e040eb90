// A run's core with a virtual swarm around it: steps take what the simulator says that they take at the peers' true speeds, peers
// tell times through the real meter, states travel in the time that the planner reckons with. No tensors and no network; what
// is under test is what the coordinator makes of what it is told.
import { OpMeter } from "../../peer/op_meter.ts";
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { followedSchedule } from "../../peer/schedule/placed.ts";
import { requestOf } from "../../coordinator/core/plan_request.ts";
import { planOfView } from "../../coordinator/core/planning.ts";
import { createUniform } from "../../coordinator/plan/jitter.ts";
import { placedStep } from "../../coordinator/plan/placed_step.ts";
import { plan } from "../../coordinator/plan/planner.ts";
import { CostModel } from "../../coordinator/plan/planner_model.ts";
import type { PlanRequest } from "../../coordinator/plan/planner_types.ts";
import { secondsAt } from "../../coordinator/plan/rebalance.ts";
import { HEARTBEAT, RunHarness } from "./run_harness.ts";

export interface VirtualPeer {
  id: string;
  /** What it measured when it joined. */
  blockMs: number;
  /** What of it does not grow with the micro-batch; absent: not measured. */
  fixedMs?: number;
  memoryBytes?: number;
}

export interface VirtualOptions {
  config: Record<string, unknown>;
  peers: readonly VirtualPeer[];
  seed?: number;
  /** Operations vary by up to this share either way. Default 0. */
  noise?: number;
}

export class VirtualSwarm {
  readonly run: RunHarness;
  /** What a peer's operations truly take over what it measured; absent = 1. */
  readonly slowdown: Record<string, number> = {};
  /** Tabs in the background. */
  readonly hidden = new Set<string>();
  /** Of each step: when it was committed, in virtual seconds, and what it took. */
  readonly steps: { at: number; took: number }[] = [];
  /** What every peer tells of its links, once that is set. */
  links: { rttMs: number; upBytesPerS: number } | null = null;
  readonly #noise: number;
  readonly #uniform: () => number;
  readonly #meters = new Map<string, OpMeter>();

  constructor({ config, peers, seed = 1, noise = 0 }: VirtualOptions) {
    this.#noise = noise;
    this.#uniform = createUniform(seed);
    this.run = new RunHarness({ min_peers: peers.length, ...config });
    for (const peer of peers) this.join(peer);
  }

  get state() {
    return this.run.state;
  }

  get now(): number {
    return this.run.now / 1000;
  }

  join({ id, memoryBytes = 4e9, ...measured }: VirtualPeer): void {
    this.run.join(id, { memoryBytes, ...measured });
  }

  /** Seconds of a step as the work is shared now, at the true speeds. */
  get stepSeconds(): number {
    const request = { ...this.#truth(), memory: () => 0, hiddenAlone: true };
    const view = this.state.view!;
    const schedule = followedSchedule(view);
    if (isPlaced(schedule)) return placedStep(request, view)!.seconds;
    return secondsAt(request, planOfView({ ...view, schedule }));
  }

  /** Seconds of a step by the best plan for the true speeds. */
  get optimum(): number {
    const best = plan(this.#truth());
    return best.kind === "plan" ? best.seconds : Infinity;
  }

  /** Steps until so many virtual seconds, or steps, have passed. */
  train(limit: { seconds?: number; steps?: number }): void {
    const { seconds = Infinity, steps = Infinity } = limit;
    const end = this.now + seconds;
    for (let i = 0; i < steps && this.now < end; i++) this.step();
  }

  /** One committed step, and whatever has to happen before it. */
  step(): void {
    this.#settle();
    const took = this.stepSeconds;
    const opened = this.run.now;
    this.run.now += took * 1000;
    this.#tell(opened);
    this.run.commit();
    this.steps.push({ at: this.now, took });
  }

  /** Sentences about the plan that the run has told, oldest first. */
  get told(): string[] {
    return this.state.events.filter((event) => event.kind === "plan").map((event) => event.text);
  }

  #truth(): PlanRequest {
    const { spec, config, peers } = this.state;
    // A tab in the background may be as quick as before; only the planner reckons with half.
    const records = Object.values(peers).map((peer) => ({
      ...peer,
      hidden: false,
      slowdown: this.slowdown[peer.id] ?? 1,
    }));
    return requestOf({ spec, config, peers: records });
  }

  /** States are handed over and loaded, learners learn; all of it takes its time. */
  #settle(): void {
    const { run, state } = this;
    if (state.phase === "handover") {
      run.store();
      run.now += 1000 * (this.#truth().cutSeconds?.(planOfView(state.view!)) ?? 0);
    }
    if (state.phase === "loading") run.ready();
    for (const { peer, stage } of [...state.transfers]) run.learn(peer, stage);
  }

  /** Each peer that computes did so, as its meter saw it, and says so. */
  #tell(opened: number): void {
    const { gen, cut, stages } = this.state.view!;
    const request = this.#truth();
    const model = new CostModel(request);
    for (const { index, replicas, firstLayer, endLayer, recompute = "none" } of stages) {
      for (const { peer, microBatches } of replicas) {
        if (microBatches.length === 0) continue;
        const meter = this.#meters.get(peer) ?? new OpMeter();
        this.#meters.set(peer, meter);
        const { committed: step } = this.state;
        meter.opened({ gen, step, traced: false }, opened);
        const at = request.peers.findIndex(({ id }) => id === peer);
        const op = model.opSeconds(at, firstLayer, endLayer, recompute);
        for (const microBatch of microBatches) {
          for (const kind of ["F", "B", "W"] as const) {
            const ms = 1000 * op[kind] * (1 + this.#noise * (2 * this.#uniform() - 1));
            const job = {
              job: "op",
              pass: "train",
              kind,
              cut,
              gen,
              stage: index,
              step,
              microBatch,
              slot: 0,
            } as const;
            meter.ran(job, { due: opened, begun: opened, ended: opened + ms, stretch: 1 });
          }
        }
        const others = this.links === null ? [] : this.run.members().filter((it) => it !== peer);
        const links = others.map((other) => ({ peer: other, path: "direct" as const, ...this.links! }));
        this.run.say(peer, { ...HEARTBEAT, links, hidden: this.hidden.has(peer), ops: meter.times(cut) });
      }
    }
  }
}
