// Mutants: for each guard of the protocol, the same sources without it, made by replacing text in a copy of them. The suite must
// fail on every one, or it would not notice if the guard went missing. No hooks in the sources: a text that is not found exactly
// once is an error here, and the list has to follow the code.
import { join } from "node:path";
import { DELAYED_MUTANTS } from "./mutants_delayed.ts";
import { OVERFLOW_MUTANTS } from "./mutants_overflow.ts";

export interface Mutant {
  name: string;
  /** Path from the repository's root. */
  file: string;
  replace: [find: string, put: string][];
  /** Where its absence shows, and how. */
  scenario: string;
  seeds: number;
  /** Where the first seeds do not show it; 1 if absent. */
  firstSeed?: number;
  noticed: RegExp;
}

/** What the simulation needs of the repository. */
const FOLDERS = ["peer", "coordinator", "shaders", "test/sim", "test/support"];
const FILES = ["deno.json", "package.json"];

export const MUTANTS: readonly Mutant[] = [
  {
    name: "exact cover: a sum over whatever parts are there",
    file: "peer/core/sums.ts",
    replace: [[
      "  assert(cover.ok, `stage ${",
      "  if (!cover.ok && state.gen < 0) assert(cover.ok, `stage ${",
    ]],
    scenario: "crooked",
    seeds: 50,
    noticed: /^I[2478] /,
  },
  {
    name: "generation check of parts: sums of an older view count",
    file: "peer/core/accept.ts",
    replace: [["  if (isOfOneView(frame) && gen < view.gen) return null;\n", ""]],
    scenario: "replay",
    seeds: 150,
    noticed: /^I3 .* took a replayed frame/,
  },
  {
    name: "cut check at the peer: frames of an earlier cut of the layers count",
    file: "peer/core/accept.ts",
    replace: [[" || header.cut !== view.cut) return null;", ") return null;"]],
    scenario: "replay",
    seeds: 150,
    noticed: /^I3 .* took a replayed frame/,
  },
  {
    name: "fencing at the peer: anybody may send for a stage",
    file: "peer/core/accept.ts",
    replace: [[" || !holds(view.stages[header.fromStage], from)) return null;", ") return null;"]],
    scenario: "replay",
    seeds: 150,
    noticed: /^I3 .* took a frame in another's name/,
  },
  {
    name: "duplicates: the same frame counts twice",
    file: "peer/core/accept.ts",
    replace: [["state.arrived.some((it) => isSame(it, frame)) ? null : frame;", "false ? null : frame;"]],
    scenario: "replay",
    seeds: 150,
    noticed: /^I3 .* took a doubled frame/,
  },
  {
    name: "fencing at the coordinator: who does not hold a stage may log its total",
    file: "coordinator/core/commit.ts",
    replace: [[
      "|| !open || !isHolder(s, stage, peer)) return false;",
      "|| !open || !s.view.stages[stage]) return false;",
    ]],
    scenario: "replay",
    seeds: 150,
    noticed: /^I3 a stale "logged"/,
  },
  {
    name: "cut check at the coordinator: totals of an earlier cut count",
    file: "coordinator/core/commit.ts",
    replace: [[
      "if (message.cut !== s.view?.cut || !open || !isHolder",
      "if (s.view === null || !open || !isHolder",
    ]],
    scenario: "replay",
    seeds: 300,
    noticed: /^I3 a stale "logged"/,
  },
  {
    name: "two holders before a commit: one is enough",
    file: "coordinator/core/commit.ts",
    replace: [["const LOGGED_LEAST = 2;", "const LOGGED_LEAST = 1;"]],
    scenario: "calm",
    seeds: 25,
    noticed: /^I1 step \d+: \d holders/,
  },
  {
    name: "fetch after a commit: who missed a total waits for ever",
    file: "peer/core/totals.ts",
    replace: [[
      '  if (waits || (work.total === "asked" && known !== hash)) ask(state, instance, out);\n',
      "  if (waits && state.gen < 0) ask(state, instance, out);\n",
    ]],
    scenario: "late",
    seeds: 50,
    noticed: /^I[45] /,
  },
  {
    name: "durable before told: a commit is logged after it was sent",
    file: "coordinator/core/commit.ts",
    replace: [
      [
        '  turn.out.push({ do: "persist", record: { kind: "commit", gen: s.gen, ...said, ...scaled } });\n',
        "",
      ],
      [
        '  for (const peer of peersOf(view)) turn.out.push({ do: "send", peer, message });\n',
        '  for (const peer of peersOf(view)) turn.out.push({ do: "send", peer, message });\n' +
        '  turn.out.push({ do: "persist", record: { kind: "commit", gen: s.gen, ...said, ...scaled } });\n',
      ],
    ],
    scenario: "coordinator-crash",
    seeds: 100,
    noticed: /^I1/,
  },
  {
    name: "hash of a fetched total: whatever comes is installed",
    file: "peer/held_sums.ts",
    replace: [[
      "  if (hash !== job.hash) return { hash };\n  held.total.set(value.subarray(0, size));\n" +
      "  held.overflow ||= overflow;\n" +
      "  held.tied = isTiedEnd(held, config) ? value.slice(size) : null;\n  return facts(held, job, config);",
      "  held.total.set(value.subarray(0, size));\n" +
      "  held.tied = isTiedEnd(held, config) ? value.slice(size) : null;\n" +
      "  return { ...facts(held, job, config), hash: hash === '' ? hash : job.hash };",
    ]],
    scenario: "corrupt",
    seeds: 100,
    noticed: /^I[2478] /,
  },
  {
    name: "hash of a learner's state: it counts as a holder whatever it has",
    file: "peer/holder.ts",
    replace: [[
      "    if (hash === job.file.hash) this.#held.set(job.stage, held);\n    return { hash };",
      "    this.#held.set(job.stage, held);\n    return { hash: job.file.hash };",
    ]],
    scenario: "corrupt",
    seeds: 100,
    noticed: /^I[2478] /,
  },
  {
    name: "hash of a snapshot: a new cut starts from whatever was stored",
    file: "peer/load.ts",
    replace: [[
      "  if (hash === file.hash) return;",
      "  if (hash !== '') return;",
    ]],
    scenario: "corrupt",
    seeds: 200,
    noticed: /^I[2478] /,
  },
  {
    name: "unknown peers at the coordinator: who was put out is still heard",
    file: "coordinator/core/run_core.ts",
    replace: [[
      "if (s.peers[event.peer] !== undefined) hear(turn, s.peers[event.peer]!, event.message);",
      "hear(turn, s.peers[event.peer] ?? { ...Object.values(s.peers)[0]!, id: event.peer }, event.message);",
    ]],
    scenario: "replay",
    seeds: 50,
    noticed: /^I3 a stale /,
  },
  {
    name: "hash of an applied step: a learner with other bits becomes a holder",
    file: "coordinator/core/learn.ts",
    replace: [["    if (told.hash !== first) {", "    if (told.hash === null) {"]],
    scenario: "rot",
    seeds: 100,
    noticed: /^I[2478] /,
  },
  {
    name: "hash of an applied step: a holder with other bits stays one",
    file: "coordinator/core/disputes.ts",
    replace: [["  if (!differs(told)) {", "  if (!differs(told) || s.gen > 0) {"]],
    scenario: "rot",
    seeds: 100,
    noticed: /^I[2478] /,
  },
  {
    name: "dispute: of two who differ the first to speak wins",
    file: "coordinator/core/disputes.ts",
    replace: [[
      "  if (most!.peers.length > (next?.peers.length ?? 0)) {",
      "  if (s.gen > 0 || next === undefined) {",
    ]],
    scenario: "rot",
    seeds: 100,
    noticed: /^I[2478] /,
  },
  {
    name: "dispute: a restarted coordinator judges nobody who comes back",
    file: "coordinator/core/disputes.ts",
    replace: [["      if (isOlder) delete", "      if (s.gen > 0) delete"]],
    scenario: "rot-restart",
    seeds: 100,
    noticed: /^I[2478] /,
  },
  {
    name: "proof of those who compute: a step is committed before they have told their states",
    file: "coordinator/core/commit.ts",
    replace: [[
      "if (microBatches.length === 0 || s.committed === s.cutBase) return true;",
      "if (s.gen > 0) return true;",
    ]],
    scenario: "rot",
    seeds: 3,
    firstSeed: 2_436,
    noticed: /^I[2478] /,
  },
  {
    name: "wrong state: what others hold of the step in which it computed goes on counting",
    file: "coordinator/core/recovery.ts",
    replace: [['const tainted = wrong && s.round?.pass === "train"', "const tainted = wrong && s.gen < 0"]],
    scenario: "rot",
    seeds: 3,
    firstSeed: 2_436,
    noticed: /^I[2478] /,
  },
  {
    name: "learners: one that has not proved its state yet gets work",
    file: "coordinator/core/shares.ts",
    replace: [[
      "  const holders = replicas.filter((it) => it.learning !== true && request.peers",
      "  const holders = replicas.filter((it) => request.peers",
    ]],
    scenario: "rot",
    seeds: 200,
    noticed: /^I[2478] /,
  },
  {
    name: "hash at apply: a total is applied whatever the commit names",
    file: "peer/core/totals.ts",
    replace: [['if (work.total === "logged" && work.hash === hash) {', 'if (work.total === "logged") {']],
    scenario: "misled",
    seeds: 100,
    noticed: /^I[248] /,
  },
  {
    name: "winner of a total: who has another one is not told",
    file: "coordinator/core/commit.ts",
    replace: [["    adoptWinner(turn, peer, { stage, hash: winner });\n", ""]],
    scenario: "misled",
    seeds: 100,
    noticed: /^I5 /,
  },
  {
    name: "links that open again: what was lost with them is not sent again",
    file: "peer/core/peer_core.ts",
    replace: [[
      "s.neighbours.includes(peer)) onLinkAgain(s, peer, out);",
      "s.gen < 0) onLinkAgain(s, peer, out);",
    ]],
    scenario: "links",
    seeds: 50,
    noticed: /^I5 /,
  },
  {
    name: "retained frames: a new owner does not get what the former one had",
    file: "peer/core/amend.ts",
    replace: [["  resend(state, instance, { work, out, wants: fresh });\n", ""]],
    scenario: "crash",
    seeds: 100,
    noticed: /^I5 /,
  },
  {
    name: "promotion: a shadow is to compute, and its engine is not built",
    file: "peer/core/amend.ts",
    replace: [[
      "  if (instance.microBatches.length > 0 && instance.step !== null) wantEngine(state, instance);\n",
      "",
    ]],
    scenario: "shadow",
    seeds: 100,
    noticed: /^I5 /,
  },
  {
    name: "promotion: a shadow computes with the parameters that its engine had",
    file: "peer/core/amend.ts",
    replace: [[
      '  if (instance.engine === "ready" || instance.engine === "building") return;\n',
      '  if (instance.engine === "stale") instance.engine = "ready";\n' +
      '  if (instance.engine === "ready" || instance.engine === "building") return;\n',
    ]],
    scenario: "shadow",
    seeds: 100,
    noticed: /^I[278] /,
  },
  ...OVERFLOW_MUTANTS,
  ...DELAYED_MUTANTS,
];

/** Text with every replacement made. Throws unless each text to find is there exactly once. */
export function mutate(source: string, replace: readonly [string, string][], where: string): string {
  return replace.reduce((text, [find, put]) => {
    const found = text.split(find).length - 1;
    if (found !== 1) throw new Error(`${where}: found ${found} times, not once: ${find}`);
    return text.replace(find, () => put);
  }, source);
}

/** A folder with copies of everything that the simulation reads. */
export async function copySources(root: string): Promise<string> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-mutant-" });
  for (const name of FOLDERS) await copyFolder(join(root, name), join(folder, name));
  for (const name of FILES) await Deno.copyFile(join(root, name), join(folder, name));
  await Deno.symlink(join(root, "node_modules"), join(folder, "node_modules"));
  return folder;
}

async function copyFolder(from: string, to: string): Promise<void> {
  await Deno.mkdir(to, { recursive: true });
  for await (const { name, isDirectory, isFile } of Deno.readDir(from)) {
    if (isDirectory) await copyFolder(join(from, name), join(to, name));
    else if (isFile) await Deno.copyFile(join(from, name), join(to, name));
  }
}

export interface Verdict {
  code: number;
  /** What was violated, one line for each failing seed. */
  violations: string[];
  /** For whoever must find out why it did not run. */
  stderr: string;
}

/**
 * Plays the mutant's scenario in a process of its own until something is violated; all of it, if that was something else than
 * expected.
 */
export async function judge(folder: string, mutant: Mutant): Promise<Verdict> {
  const path = join(folder, mutant.file);
  const original = await Deno.readTextFile(path);
  await Deno.writeTextFile(path, mutate(original, mutant.replace, mutant.file));
  try {
    const first = await simulate(folder, mutant, ["--fail-fast"]);
    const expected = first.code === 0 || first.violations.some((it) => mutant.noticed.test(it));
    return expected ? first : await simulate(folder, mutant, []);
  } finally {
    await Deno.writeTextFile(path, original);
  }
}

async function simulate(folder: string, mutant: Mutant, more: string[]): Promise<Verdict> {
  const { scenario, seeds, firstSeed = 1 } = mutant;
  const worlds = [`--scenario=${scenario}`, `--seeds=${seeds}`, `--first-seed=${firstSeed}`];
  const options = [...worlds, "--jobs=1", "--json", ...more];
  const { code, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "--no-check", "--allow-read", join(folder, "test/sim/main.ts"), ...options],
    cwd: folder,
    env: { DENO_NO_UPDATE_CHECK: "1" },
  }).output();
  const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);
  return { code, violations: violationsOf(text(stdout)), stderr: text(stderr).slice(-2_000) };
}

function violationsOf(json: string): string[] {
  try {
    const { scenarios } = JSON.parse(json) as { scenarios: { failures: { violation: string }[] }[] };
    return scenarios.flatMap((it) => it.failures.map(({ violation }) => violation));
  } catch {
    return [];
  }
}
