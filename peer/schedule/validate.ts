// Checks an emitted schedule: complete, on its device, free of deadlock, within its declared memory, with one
// backward order, and with the weight versions it declares. Not a simulator: it knows no times. An empty list of problems means valid.
import {
  dependencies,
  deviceOf,
  measurePeaks,
  type Op,
  parts,
  resultKey,
  resultsOf,
  type Schedule,
} from "./ir.ts";

/** What is wrong with a schedule, in words; empty if nothing is. */
export function problemsOf(schedule: Schedule): string[] {
  return [
    ...coverProblems(schedule),
    ...placementProblems(schedule),
    ...deadlockProblems(schedule),
    ...memoryProblems(schedule),
    ...orderProblems(schedule),
    ...versionProblems(schedule),
  ];
}

/** Each of F, B and W exactly once per direction, stage and micro-batch. */
function coverProblems(schedule: Schedule): string[] {
  const counts = new Map<string, number>();
  for (const key of schedule.ops.flat().flatMap(parts).flatMap(resultsOf)) {
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const problems: string[] = [];
  for (const key of expectedResults(schedule)) {
    const count = counts.get(key) ?? 0;
    if (count !== 1) problems.push(`${key} occurs ${count} times`);
    counts.delete(key);
  }
  for (const key of counts.keys()) problems.push(`${key} is not part of the step`);
  return problems;
}

function* expectedResults(schedule: Schedule): Generator<string> {
  const directions = schedule.placement.length;
  for (let direction = 0; direction < directions; direction++) {
    for (let stage = 0; stage < schedule.stages; stage++) {
      for (let microBatch = 0; microBatch < schedule.microBatches / directions; microBatch++) {
        for (const kind of ["F", "B", "W"] as const) yield resultKey(kind, { direction, stage, microBatch });
      }
    }
  }
}

function placementProblems(schedule: Schedule): string[] {
  return schedule.ops.flatMap((list, device) =>
    list.flatMap(parts)
      .filter((op) => deviceOf(schedule, op.direction, op.stage) !== device)
      .map((op) => `${resultsOf(op)[0]} is listed on device ${device}, which does not hold the stage`)
  );
}

/** Runs every device's list as far as it goes, round after round, until nothing moves. */
function deadlockProblems(schedule: Schedule): string[] {
  const done = new Set<string>();
  const next = schedule.ops.map(() => 0);
  let moved = true;
  while (moved) {
    moved = false;
    schedule.ops.forEach((list, device) => {
      for (let op = list[next[device]!]; op !== undefined && mayRun(op); op = list[next[device]!]) {
        for (const key of parts(op).flatMap(resultsOf)) done.add(key);
        next[device]!++;
        moved = true;
      }
    });
  }
  return schedule.ops.flatMap((list, device) =>
    next[device] === list.length
      ? []
      : [`device ${device} stops at operation ${next[device]} of ${list.length}`]
  );

  function mayRun(op: Op): boolean {
    return dependencies(op, schedule).every((needed) => done.has(resultKey(needed.kind, needed)));
  }
}

function memoryProblems(schedule: Schedule): string[] {
  return measurePeaks(schedule).flatMap((peak, device) => {
    const declared = schedule.peakActivations[device] ?? 0;
    return peak <= declared ? [] : [`device ${device} holds ${peak} activations, declared ${declared}`];
  });
}

/** Backwards of a stage ascend by micro-batch (FIFO) or descend (LIFO), as the schedule declares. */
function orderProblems(schedule: Schedule): string[] {
  const last = new Map<string, number>();
  const problems: string[] = [];
  for (const op of schedule.ops.flat().flatMap(parts)) {
    if (op.kind !== "B" && op.kind !== "BW") continue;
    const stage = `${op.direction}:${op.stage}`;
    const before = last.get(stage);
    last.set(stage, op.microBatch);
    if (before === undefined) continue;
    const rises = op.microBatch > before;
    if (rises !== (schedule.backwardOrder === "fifo")) {
      problems.push(
        `backward ${op.microBatch} of stage ${stage} follows ${before}, not ${schedule.backwardOrder}`,
      );
    }
  }
  return problems;
}

/** A forward of step k may only run once its stage has every weight gradient that its version of the weights contains. */
function versionProblems(schedule: Schedule): string[] {
  if (schedule.asynchronous === undefined) return [];
  const { perStep, delay } = schedule.asynchronous;
  const done = new Map<string, number>();
  const problems: string[] = [];
  for (const op of schedule.ops.flat().flatMap(parts)) {
    const stage = `${op.direction}:${op.stage}`;
    const finished = done.get(stage) ?? 0;
    if (op.kind === "W" || op.kind === "BW") done.set(stage, finished + 1);
    const needed = perStep * (Math.floor(op.microBatch / perStep) - delay);
    if (op.kind === "F" && finished < needed) {
      problems.push(
        `forward ${op.microBatch} of stage ${stage} needs ${needed} weight gradients, has ${finished}`,
      );
    }
  }
  return problems;
}
