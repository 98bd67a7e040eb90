// The scenarios: for each a seeded draw of a small run and of the faults that it must survive. A plan is plain data, printed in
// one line before the world begins. What the faults do is in faults.ts, what must hold in invariants.ts.
import { readConfig } from "../../peer/model/config.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { pick, type Random, seededRandom } from "../support/random.ts";
import { gapMost, patience } from "./bounds.ts";
import { ALL_PATHS, between, type Fault, inOrder, salt } from "./faults.ts";
import type { Path } from "./network.ts";
import { DELAYED, inTwoVersions } from "./delayed_shape.ts";
import { inHalves, OVERFLOWING } from "./halves_shape.ts";
import { ADAPTED, withAdapters } from "./lora_shape.ts";
import { mirroredShape, placedShape } from "./placed_shapes.ts";
import { COORDINATOR_STATES, PEER_STATES } from "./probe.ts";
import { replanFaults, replanShape } from "./replan_shape.ts";
import { rottenRestart, rottenShape } from "./rotten_shape.ts";

/** Faults begin in this part of a run; a calm one takes about three virtual seconds. */
const FIRST_MS = 150;
const LAST_MS = 3_000;
/** Beyond the silence after which a peer is put out, whatever its heartbeats were like. */
const LONG_MS = 20_000;
/** Beyond the pings of a link. */
const VERY_LONG_MS = 40_000;

export interface Plan {
  scenario: string;
  seed: number;
  peers: number;
  config: RunConfig;
  faults: Fault[];
  /** When all faults end and the run must converge. */
  healAt: number;
  /** Whatever the rule of survivors.ts says: with these faults no step may be done again. */
  mayRedo: boolean;
  /** None of these faults is a reason to put somebody out. */
  mayLose: boolean;
  /** I5: most virtual ms between two commits. */
  gapMostMs: number;
  patienceMs: number;
}

interface Setting {
  peers: number;
  config: Record<string, unknown>;
  faults: Fault[];
  /** Steps may be done again where a stage is lost: the faults may take all of its holders. */
  mayRedo: boolean;
  mayLose: boolean;
}

type Draw = (random: Random, seed: number) => Setting;

/** A model of 1,344 floats: every layout group is padded to 64, so a smaller one would not be cheaper. */
export function simConfig(changes: Record<string, unknown>): RunConfig {
  return readConfig({
    ...{ n_layer: 3, n_head: 2, n_kv_head: 1, n_embd: 4, n_inner: 4, block_size: 4, batch_size: 1 },
    ...{ gradient_accumulation_steps: 4, max_iters: 7, warmup_iters: 1, lr_decay_iters: 7, eval_interval: 4 },
    ...{ eval_iters: 2, checkpoint_interval: 100, snapshot_interval: 3, sample_chars: 0, min_peers: 3 },
    ...{ codec_forward: "raw32", codec_backward: "raw32", seed: 11, shadows: true, parity: false },
    ...changes,
  });
}

function when(random: Random): number {
  return between(random, FIRST_MS, LAST_MS);
}

function times<T>(random: Random, most: number, make: (k: number) => T): T[] {
  return Array.from({ length: 1 + Math.floor(random() * most) }, (_, k) => make(k));
}

function lost(random: Random): Path[] {
  return pick<Path[]>(random, [[], [], ["frames"], ["control"], ALL_PATHS])!;
}

function crash(random: Random, at: number): Fault {
  return { at, do: "crash", who: random(), lose: lost(random) };
}

function variety(random: Random): Record<string, unknown> {
  return {
    n_stage: pick(random, [0, 3, 2, 3]),
    schedule: pick(random, ["dynamic", "dynamic", "1f1b", "gpipe"]),
    gradient_accumulation_steps: pick(random, [4, 4, 5]),
  };
}

function setting(random: Random, faults: Fault[], changes: Partial<Setting> = {}): Setting {
  const peers = changes.peers ?? between(random, 3, 5);
  const rest = { mayRedo: false, mayLose: true, faults };
  return { peers, ...rest, ...changes, config: { ...variety(random), ...changes.config } };
}

function crashes(random: Random, count: number): Fault[] {
  return Array.from({ length: count }, () => when(random)).flatMap((at): Fault[] => [
    crash(random, at),
    { at: at + between(random, 0, 600), do: "join" },
  ]);
}

const DRAWS: Record<string, Draw> = {
  calm: (random) => setting(random, [], { mayLose: false }),
  crash: (random) => setting(random, [crash(random, when(random))]),
  crashes: (random) => setting(random, crashes(random, 3), { mayRedo: true }),
  zombie: (random) => {
    const faults = times(random, 3, (): Fault[] => {
      const [at, who] = [when(random), random()];
      const silent: Fault = random() < 0.5
        ? { at, do: "mute", who }
        : { at, do: "freeze", who, forMs: between(random, 100, LONG_MS) };
      return [silent, { at: at + 100, do: "join" }];
    });
    return setting(random, faults.flat(), { mayRedo: true });
  },
  rejoin: (random) => {
    const at = when(random);
    const join: Fault = { at: at + between(random, 0, 300), do: "join" };
    return setting(random, [crash(random, at), join]);
  },
  "second-failure": (random) => {
    const at = when(random);
    const second = crash(random, at + between(random, 0, 500));
    return setting(random, [crash(random, at), second], { peers: 5, mayRedo: true });
  },
  links: (random) => {
    const cut = (): Fault => ({
      ...{ at: when(random), do: "cut", who: random(), other: random() },
      lateMs: between(random, 50, 2_000),
    });
    return setting(random, times(random, 4, cut), { mayLose: false });
  },
  partition: (random) =>
    setting(random, times(random, 2, () => partition(random, "both")), { mayRedo: true }),
  oneway: (random) =>
    setting(random, times(random, 2, () => partition(random, random() < 0.5 ? "in" : "out")), {
      mayRedo: true,
    }),
  clog: (random) => {
    const clog = (): Fault => ({
      ...{ at: when(random), do: "clog", path: pick<Path | "all">(random, ["control", "frames", "all"])! },
      ...{ share: 0.2 + random() * 0.6, salt: salt(random), forMs: between(random, 100, 3_000) },
    });
    return setting(random, [...times(random, 3, clog), spike(random)]);
  },
  // Three holders of a stage and more: a step is committed before all of them have its total.
  late: (random) => {
    const clog = (): Fault => ({
      ...{ at: when(random), do: "clog", path: "frames", share: 0.1 + random() * 0.3, salt: salt(random) },
      forMs: between(random, 100, 1_500),
    });
    const config = { n_stage: pick(random, [1, 2]) };
    return setting(random, times(random, 4, clog), { peers: between(random, 4, 5), config, mayLose: false });
  },
  swizzle: (random) => {
    const swizzle = (): Fault => ({
      ...{ at: when(random), do: "swizzle", share: 0.3 + random() * 0.7, salt: salt(random) },
      forMs: between(random, 300, 3_000),
    });
    return setting(random, [...times(random, 2, swizzle), ...maybe(random, crash(random, when(random)))]);
  },
  // Without shadows a crash sets the run back, and frames of the old cut are about steps that come again.
  replay: (random) =>
    setting(random, replays(random), { mayRedo: true, config: { shadows: random() < 0.5 } }),
  "pause-leave-join": (random) => setting(random, wishes(random), { peers: 4 }),
  replicas: (random) => {
    const config = { n_stage: 2, gradient_accumulation_steps: pick(random, [4, 5, 6]) };
    return setting(random, [crash(random, when(random))], { peers: 5, config });
  },
  // Three computing replicas and more: sums go by shards.
  butterfly: (random) => {
    const config = { n_stage: 2, gradient_accumulation_steps: pick(random, [6, 8]) };
    const cut: Fault = { at: when(random), do: "cut", who: random(), other: random(), lateMs: 1_000 };
    const faults = [...crashes(random, between(random, 1, 2)), ...maybe(random, cut)];
    return setting(random, faults, { peers: between(random, 6, 8), config, mayRedo: true });
  },
  // All holders of a stage at once: back to what peers of other stages keep.
  "last-holder": (random) => {
    const config = { n_stage: 2, parity: true, snapshot_interval: pick(random, [2, 3]) };
    const [stage, lose] = [random(), lost(random)];
    const faults: Fault[] = [{ at: between(random, 1_200, LAST_MS), do: "crash-stage", stage, lose }];
    const more = maybe(random, crash(random, faults[0]!.at + between(random, 0, 900)));
    return setting(random, [...faults, ...more], { peers: between(random, 4, 6), config, mayRedo: true });
  },
  shadow: (random) => {
    const config = { n_stage: 3, shadows: true };
    return setting(random, [crash(random, when(random))], { peers: 3, config });
  },
  "coordinator-crash": (random) => setting(random, [coordinator(random, false)]),
  "torn-log": (random) => {
    const more = maybe(random, coordinator(random, true));
    return setting(random, [coordinator(random, true), ...more]);
  },
  "disk-full": (random) => {
    const full: Fault = { at: when(random), do: "disk-full", forMs: between(random, 200, 3_000) };
    return setting(random, [full, ...maybe(random, coordinator(random, false))]);
  },
  clock: (random) => {
    const jump = (): Fault => {
      const byMs = (random() < 0.5 ? -1 : 1) * between(random, 100, VERY_LONG_MS);
      return { at: when(random), do: "clock", byMs, forMs: between(random, 100, 5_000) };
    };
    const drift: Fault = { at: when(random), do: "timers", scale: 0.2 + random() * 5, forMs: 3_000 };
    return setting(random, [...times(random, 2, jump), ...maybe(random, drift)], { mayLose: false });
  },
  crooked: (random) => {
    const crook: Fault = { at: 0, do: "crook", gen: between(random, 1, 2), micro: between(random, 0, 3) };
    const config = { n_stage: 1, gradient_accumulation_steps: 4 };
    return setting(random, [crook, { at: 900, do: "join" }], { peers: 3, config, mayRedo: true });
  },
  corrupt: (random) => {
    const corrupt: Fault = { at: 0, do: "corrupt", fetches: between(random, 1, 3) };
    const lies: Fault = { at: 0, do: "wrong-totals", count: between(random, 0, 3) };
    return setting(random, [corrupt, lies, ...crashes(random, 2)], { mayRedo: true });
  },
  // Who computes nothing has other bits, and is found before a step in which it computes is committed; of two both go back.
  rot: (random) => {
    const { faults, later, ...shape } = rottenShape(random);
    return setting(random, later === null ? faults : [...faults, crash(random, later)], shape);
  },
  // A sum arrives wrong: the total that others have logged is taken over, or asked for when it is committed.
  misled: (random) => {
    const mislead = (): Fault => ({
      ...{ at: when(random) / 2, do: "mislead-in", state: "shadow: awaiting parts" },
      forMs: between(random, 20, 400),
    });
    const faults = times(random, 3, mislead);
    // More holders than micro-batches, so that some only hold; or two of a stage, of whom both are needed.
    const n_stage = pick(random, [1, 3]);
    return setting(random, faults, {
      peers: n_stage === 1 ? 6 : 3,
      config: { n_stage, gradient_accumulation_steps: 4 },
    });
  },
  states: (random, seed) => stateSetting(random, seed),
  everything: (random) => {
    const some = times(random, 4, () => {
      const draw = DRAWS[pick(random, EVERYTHING)!]!;
      return draw(random, salt(random)).faults;
    });
    return setting(random, some.flat(), { mayRedo: true, config: tiedNowAndThen(random) });
  },
  placed: (random) => {
    const faults = random() < 0.3 ? wishes(random) : crashes(random, between(random, 1, 2));
    faults.push(...maybe(random, coordinator(random, false)));
    return setting(random, faults, { ...placedShape(random), mayRedo: true });
  },
  mirror: (random) => setting(random, [crash(random, when(random))], mirroredShape(random)),
  overflow: (random, seed) => inHalves(DRAWS[pick(random, OVERFLOWING)!]!(random, seed)),
  replan: (random) => setting(random, replanFaults(random), { ...replanShape(random), mayRedo: true }),
  "2bw": (random, seed) => inTwoVersions(DRAWS[pick(random, DELAYED)!]!(random, seed), random),
  lora: (random, seed) => withAdapters(DRAWS[pick(random, ADAPTED)!]!(random, seed), random),
  // A new one comes last: what a seed draws depends on a scenario's place.
  "rot-restart": (random) => setting(random, ...rottenRestart(random)),
};

/**
 * A wrong plan may stop a round until the coordinator gives it up, which takes longer than all other faults. A memory that is
 * wrong by itself is found because others are right and there; when those may go as well, nobody can say what was right.
 */
const APART = "calm crooked rot rot-restart misled everything placed mirror overflow replan 2bw lora".split(
  " ",
);
const EVERYTHING = Object.keys(DRAWS).filter((name) => !APART.includes(name));

export const SCENARIOS: readonly string[] = Object.keys(DRAWS);

function maybe(random: Random, ...faults: Fault[]): Fault[] {
  return random() < 0.5 ? faults : [];
}

function tiedNowAndThen(random: Random): Record<string, unknown> {
  return random() < 0.2 ? { tie_word_embeddings: true } : {};
}

function spike(random: Random): Fault {
  const at = when(random);
  const share = 0.3 + random() * 0.7;
  const extraMs = between(random, 50, 800);
  return { at, do: "spike", share, salt: salt(random), extraMs, forMs: between(random, 200, 2_000) };
}

function partition(random: Random, way: "both" | "in" | "out"): Fault {
  const forMs = between(random, 200, pick(random, [2_000, LONG_MS, VERY_LONG_MS])!);
  return { at: when(random), do: "partition", share: 0.2 + random() * 0.4, salt: salt(random), way, forMs };
}

function replays(random: Random): Fault[] {
  const again = (): Fault => ({
    ...{ at: between(random, 800, LAST_MS + 1_500), do: "replay", frames: 40, salt: salt(random) },
    forge: random() < 0.5,
  });
  return [...crashes(random, 2), ...times(random, 5, again)];
}

function wishes(random: Random): Fault[] {
  return times(random, 4, (): Fault => {
    const [at, who] = [when(random), random()];
    const forMs = between(random, 50, 1_500);
    const all: Fault[] = [
      { at, do: "leave", who },
      { at, do: "pause", who, forMs },
      { at, do: "hold", forMs },
      { at, do: "join" },
    ];
    return pick(random, all)!;
  });
}

function coordinator(random: Random, tear: boolean): Fault {
  const point = pick(random, ["now", "commit-log", "commit-send"] as const)!;
  const nth = between(random, 1, 4);
  const [downMs, lose] = [between(random, 100, 3_000), random() < 0.5];
  return { at: when(random), do: "coordinator", point, nth, downMs, tear, lose };
}

/** One world for each state of each role, the first time it is reached or a later one. */
function stateSetting(random: Random, seed: number): Setting {
  const all = PEER_STATES.length + COORDINATOR_STATES.length;
  const index = seed % all;
  // The first seeds reach every state for certain, later ones any time that it comes up.
  const nth = seed <= all ? 1 : between(random, 1, 5);
  const state = PEER_STATES[index];
  if (state === undefined) {
    return coordinatorSetting(random, COORDINATOR_STATES[index - PEER_STATES.length]!, nth);
  }
  const faults: Fault[] = [{ at: 0, do: "crash-in", state, nth, lose: lost(random) }];
  faults.push({ at: between(random, 600, 1_200), do: "join" });
  // A peer that pauses is a spare until it resumes.
  if (state.startsWith("spare")) faults.push({ at: 500, do: "pause", who: random(), forMs: 2_000 });
  if (/asked|installing|learner: applying/.test(state)) faults.push(missing(random, state));
  return setting(random, faults, { ...shapeFor(random, state), mayRedo: false });
}

/** What makes a holder miss a total that the others have. */
function missing(random: Random, state: string): Fault {
  const forMs = 900;
  if (state.startsWith("learner")) {
    return { at: 650, do: "clog", path: "store", share: 1, salt: salt(random), forMs };
  }
  // Others need nothing of it any more, and its own shards or parts are still to come.
  const waiting = state.startsWith("replica") ? "replica: awaiting shards" : "shadow: awaiting parts";
  return { at: 500, do: "deaf-in", state: waiting, forMs };
}

/** A run in which a peer gets into the state. */
function shapeFor(random: Random, state: string): Pick<Setting, "peers" | "config"> {
  const [role = "", doing = ""] = state.split(": ");
  const misses = /asked|installing/.test(doing) || state === "learner: applying";
  if (/shard/.test(doing) || (misses && role === "replica")) {
    return { peers: 7, config: { n_stage: 2, gradient_accumulation_steps: 6 } };
  }
  if (role === "keeper" || role === "owner") {
    return { peers: between(random, 4, 6), config: { n_stage: 2, parity: true, snapshot_interval: 2 } };
  }
  // More holders than compute: an order with a placement of its own makes shadows of the others.
  if (misses && role === "shadow") {
    return { peers: 6, config: { n_stage: 1, gradient_accumulation_steps: 4, schedule: "1f1b" } };
  }
  if (misses) return { peers: 4, config: { n_stage: 2 } };
  if (role === "shadow") return { peers: 3, config: { n_stage: 3 } };
  const config = { n_stage: pick(random, [2, 3]), tie_word_embeddings: role === "tied end" };
  return { peers: between(random, 3, 5), config };
}

function coordinatorSetting(random: Random, state: string, nth: number): Setting {
  const downMs = between(random, 100, 2_000);
  const faults: Fault[] = [{ at: 0, do: "coordinator-in", state, nth, downMs, lose: random() < 0.5 }];
  // Only a pause makes the coordinator hold, and only a newcomer makes it collect every stage's state.
  faults.push({ at: 900, do: "hold", forMs: 600 }, { at: 700, do: "join" });
  const first = { nth: 1, downMs: 300, tear: false, lose: false };
  if (state === "regathering") faults.push({ at: 1_000, do: "coordinator", point: "now", ...first });
  if (state === "restoring") faults.push({ at: 2_300, do: "crash-stage", stage: random(), lose: [] });
  const keeps = state === "restoring" || state === "snapshot";
  const config = keeps ? { n_stage: 2, parity: true, snapshot_interval: 2 } : {};
  return setting(random, faults, { peers: 4, config, mayRedo: true });
}

/** The plan of a seed: the same for ever, as long as the scenario is not changed. */
export function planOf(scenario: string, seed: number): Plan {
  const draw = DRAWS[scenario];
  if (draw === undefined) throw new Error(`unknown scenario "${scenario}"; known: ${SCENARIOS.join(", ")}`);
  const random = seededRandom(seed * 31 + SCENARIOS.indexOf(scenario));
  const { peers, config, faults, mayRedo, mayLose } = draw(random, seed);
  const ends = faults.map((fault) => fault.at + ("forMs" in fault ? fault.forMs : 0));
  const healAt = Math.max(LAST_MS, ...ends) + 1_000;
  const run = simConfig({ min_peers: peers, ...config });
  const bounds = { gapMostMs: gapMost(faults, { peers, healAt }), patienceMs: patience(faults) };
  return { scenario, seed, peers, config: run, faults: inOrder(faults), healAt, mayRedo, mayLose, ...bounds };
}

/** One line: everything that was drawn. */
export function describePlan(plan: Plan): string {
  const { n_stage, schedule, gradient_accumulation_steps, shadows, tie_word_embeddings } = plan.config;
  const shape = [`${plan.peers} peers`, `n_stage ${n_stage}`, schedule, `N ${gradient_accumulation_steps}`];
  if (!shadows) shape.push("no shadows");
  if (tie_word_embeddings) shape.push("tied");
  const faults = plan.faults.map((fault) => JSON.stringify(fault)).join(" ");
  return `${plan.scenario}, seed ${plan.seed}: ${shape.join(", ")}; heal at ${plan.healAt}; ${faults}`;
}
