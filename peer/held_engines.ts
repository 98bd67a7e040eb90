// The engines of one stage instance: one, or with the schedule 2bw two, for even and for odd steps, since then two steps with
// different weights are computed at once. Each has its own slots, so neither knows of the other. Not behaviour: holder.ts does
// what the core's jobs say. What must stay true: a step computes with the weights that basisOf names.
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import { basisOf } from "./exact/delay.ts";
import type { Held } from "./held.ts";
import { assert } from "./wire/errors.ts";

type Engines = Pick<Held, "engine" | "odd">;

/** Those that are not there yet are built. */
export async function buildEngines(
  held: Engines,
  build: StageBuild,
  { delayed, create }: { delayed: boolean; create: (build: StageBuild) => Promise<StageEngine> },
): Promise<void> {
  held.engine ??= await create(build);
  if (delayed) held.odd ??= await create(build);
}

/** Uploads what the next operations compute with, and frees every slot. Nothing if there is no engine. */
export async function loadEngines(held: Engines & Pick<Held, "state">): Promise<void> {
  const { engine, odd, state } = held;
  if (odd === null) return await engine?.load(state.params);
  await loadFor(held, state.step);
  await loadFor(held, state.step + 1);
}

/** A step was applied: the newest weights go where they are needed, and the slots of the step are free. */
export async function loadNewest(held: Engines & Pick<Held, "state">): Promise<void> {
  await (held.odd === null ? held.engine?.load(held.state.params) : loadFor(held, held.state.step + 1));
}

async function loadFor(held: Engines & Pick<Held, "state">, step: number): Promise<void> {
  await engineFor(held, step)?.load(basisOf(held.state, step).params);
}

/** The engine that computes a training step. */
export function engineFor({ engine, odd }: Engines, step: number): StageEngine | null {
  return step % 2 === 1 && odd !== null ? odd : engine;
}

/** The engine of an operation. An evaluation looks at the newest weights, which are those of the training step after the next. */
export function engineOf(
  held: Engines & Pick<Held, "plan">,
  { pass, step }: { pass: "train" | "eval"; step: number },
): StageEngine {
  const engine = engineFor(held, pass === "eval" ? step + 1 : step);
  assert(engine !== null, `stage ${held.plan.index} is a shadow here and has no engine`);
  return engine;
}

export function enginesOf({ engine, odd }: Engines): StageEngine[] {
  return [engine, odd].filter((it) => it !== null);
}

export function destroyEngines(held: Engines): void {
  for (const engine of enginesOf(held)) engine.destroy();
}
