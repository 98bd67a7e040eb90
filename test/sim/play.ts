// One simulated run: a plan, its world, the invariants, and what came of it. Safety while faults last, then everything is healed
// and the run must converge within a bound. Never throws; a violation is part of the outcome.
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import { withLora } from "../../peer/engine/lora.ts";
import { specOf } from "../../peer/model/layout.ts";
import { withOverflow } from "../support/overflow.ts";
import { frozenBase } from "../support/frozen_base.ts";
import { createSimEngine } from "./engine.ts";
import { Nemesis } from "./faults.ts";
import { type Counts, Invariants, Violation } from "./invariants.ts";
import { mayProbe } from "./probing.ts";
import { type Reference, referenceOf } from "./reference.ts";
import type { Plan } from "./scenarios.ts";
import { tinyCorpus, VOCABULARY } from "./support.ts";
import type { WorldOptions } from "./types.ts";
import { World } from "./world.ts";

/**
 * I5: once healed, a run of this size finishes within so many virtual ms. A frozen peer may cost the longest silence limit, a
 * view that does not come up its loading limit, and then all steps may be left.
 */
export const CONVERGE_MS = 240_000;
/** After the end, holders that missed something catch up within this time. */
const SETTLE_MS = 15_000;
/** What is under way at the end arrives within this time, wanted or not. */
const SETTLE_LEAST_MS = 500;
/** One seed in so many computes with the CPU engine's real kernels, and sends its frames as bytes. */
const REAL_EVERY = 16;

export interface Outcome extends Counts {
  scenario: string;
  seed: number;
  /** Empty, or what went wrong. */
  violation: string;
  generations: number;
  fenced: number;
  virtualMs: number;
  /** From the healing to the end; 0 if the run ended before. */
  convergedMs: number;
  hits: Record<string, number>;
}

/** `changes` and `visit` let a targeted test look on or tamper. */
export async function play(
  plan: Plan,
  changes: Partial<WorldOptions> = {},
  visit: (world: World, reference: Reference) => void = () => {},
): Promise<Outcome> {
  const real = plan.seed % REAL_EVERY === 0;
  const create = real ? createCpuEngine : createSimEngine;
  const { config, seed, peers } = plan;
  const over = config.dtype === "f16";
  const createEngine = withLora(
    (build) => Promise.resolve(over ? withOverflow(create(build), build) : create(build)),
    frozenBase,
  );
  const base = { config, spec: specOf(config, VOCABULARY), corpus: CORPUS, createEngine };
  const reference = await referenceOf(base, real ? "cpu" : "simulated");
  const world = new World({ ...base, seed, peers, bytes: real, probes: mayProbe(plan), ...changes });
  world.mayRefuse = plan.faults.some((fault) => ["crook", "corrupt", "wrong-totals"].includes(fault.do));
  const invariants = new Invariants(world, reference, plan);
  const nemesis = new Nemesis(world, invariants, plan.faults);
  world.observers.push(nemesis, invariants);
  visit(world, reference);
  const { violation, endedAt } = await runToTheEnd({ world, invariants, nemesis }, plan);
  return {
    ...invariants.counts,
    ...{
      scenario: plan.scenario,
      seed,
      violation,
      hits: { ...nemesis.hits, refusal: world.refusals.length, overflow: invariants.skipped },
    },
    generations: world.coordinator.state.gen,
    fenced: world.fenced,
    virtualMs: endedAt,
    convergedMs: Math.max(0, endedAt - plan.healAt),
  };
}

const CORPUS = tinyCorpus();

interface End {
  violation: string;
  endedAt: number;
}

async function runToTheEnd(
  { world, invariants, nemesis }: { world: World; invariants: Invariants; nemesis: Nemesis },
  plan: Plan,
): Promise<End> {
  try {
    const finished = await finish(world, plan);
    const endedAt = world.clock.now;
    nemesis.rest();
    world.heal();
    for (
      let ms = 0;
      ms < SETTLE_MS && (ms < SETTLE_LEAST_MS || invariants.behind() !== null);
      ms += SETTLE_LEAST_MS
    ) {
      await world.drain(SETTLE_LEAST_MS);
    }
    invariants.finish(finished);
    return { violation: "", endedAt };
  } catch (error) {
    const { name, message } = error as Error;
    return { violation: message.startsWith("I") ? message : `${name}: ${message}`, endedAt: world.clock.now };
  }
}

/** False if it has ended without a last checkpoint, and said why. */
async function finish(world: World, plan: Plan): Promise<boolean> {
  if (await world.run(plan.healAt)) return true;
  world.heal();
  while (world.alive().length + world.joining < plan.peers) world.join();
  if (await world.run(plan.healAt + CONVERGE_MS)) return true;
  if (endedHonestly(world, plan)) return false;
  throw new Violation(`I5 not finished ${CONVERGE_MS} ms after healing: ${stateOf(world)}`);
}

/** A disk that is full at the very end fails the run, which says so; the peers' states must be right nevertheless. */
function endedHonestly(world: World, plan: Plan): boolean {
  const { status, reason } = world.coordinator.state;
  const wasFull = plan.faults.some((fault) => fault.do === "disk-full");
  return wasFull && status === "failed" && reason.includes("could not be written: disk full");
}

function stateOf(world: World): string {
  const { committed, gen, phase, status, reason } = world.coordinator.state;
  return `step ${committed}, generation ${gen}, ${phase}, ${status}: ${reason}`;
}
