// What each verb may touch, as Deno permissions: the narrow sets that docs/self-hosting.md documents.
// Decides from arguments only; no I/O. Never -A: a contributor's files stay out of reach of the peer.
// @ts-check
import { basename, dirname, join, resolve } from "node:path";
import { parseArgs } from "node:util";

/**
 * @typedef {object} Surroundings
 * @property {string} root the repository
 * @property {string} cwd
 * @property {string} tmp the system's folder for temporary files
 * @property {string} deno path of the deno binary
 * @property {string | null} chromium
 */

/** What the native add-ons (WebRTC, Dawn) and the GPU drivers need: they are loaded as code. */
const nativeCode = ["--allow-ffi"];

/**
 * The `deno run` permission flags for a verb with its arguments.
 * @param {string} verb
 * @param {string[]} args
 * @param {Surroundings} around
 * @returns {string[]}
 */
export function permissionsFor(verb, args, around) {
  const flags = readPaths(args, around.cwd);
  if (verb === "peer") {
    const kept = flags.stateDir === null ? [] : [flags.stateDir];
    const files = [...read(around.root, ...kept), ...(kept.length > 0 ? write(...kept) : [])];
    return [
      ...nativeCode,
      "--allow-env",
      "--allow-sys",
      ...files,
      ...net(hostOf(flags.join), flags.modelHost),
    ];
  }
  if (verb === "generate") {
    if (flags.url !== null) return [...read(around.root), ...net(hostOf(flags.url)), "--allow-env"];
    return [...read(around.root, ...flags.folders), "--allow-env"];
  }
  if (verb === "import") {
    const { from, out, hosts } = importPaths(args, around.cwd);
    const asked = hosts.length === 0 ? [] : net(...hosts);
    return [...read(around.root, ...from, ...out), ...write(...out), ...asked, "--allow-env"];
  }
  if (verb === "corpus") return corpusPermissions(args, around);
  if (verb === "eval") {
    return [...nativeCode, ...read(around.root, ...flags.folders), "--allow-env", "--allow-sys"];
  }
  if (verb === "serve") {
    return [...read(around.root, ...flags.folders), "--allow-env", "--allow-sys", ...net(flags.host)];
  }
  if (verb === "export") {
    const { places, metrics } = exportPaths(args, around.cwd);
    const inputs = flags.folders.filter((path) => !flags.written.includes(path));
    return [
      ...read(around.root, ...inputs, ...metrics, ...places),
      ...write(...places),
      "--allow-sys=statfs",
    ];
  }
  if (verb === "doctor") {
    const places = [around.root, around.cwd, "/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    return [
      ...nativeCode,
      "--allow-env",
      "--allow-sys",
      ...read(...places),
      ...run(around.chromium),
      ...net(),
    ];
  }
  const texts = flags.many ? { read: [], written: [] } : sharedTexts(flags.written, around.cwd);
  const written = [...flags.written, ...texts.written];
  const server = ["--allow-env", "--allow-sys", ...write(...written), ...net(flags.host)];
  const files = [around.root, ...flags.folders, ...texts.read];
  if (verb === "run") return [...server, ...read(...files), ...run(around.deno)];
  if (verb !== "demo") return [...server, ...read(...files)];
  // Playwright looks at the browser's file before it starts it, and keeps a profile under the temporary folder.
  const browser = around.chromium === null ? [] : [around.chromium];
  return [
    ...server.filter((flag) => !flag.startsWith("--allow-write")),
    ...write(...written, around.tmp),
    ...read(...files, around.tmp, ...browser),
    ...run(around.deno, around.chromium),
  ];
}

/**
 * Runs that lie side by side in runs/ keep their texts there, too; one that lies elsewhere may read them.
 * @param {string[]} written @param {string} cwd
 */
function sharedTexts(written, cwd) {
  const runs = resolve(cwd, "runs"), texts = join(runs, "corpora");
  if (written.includes(runs)) return { read: [], written: [] };
  const beside = written.map((path) => join(dirname(path), "corpora"));
  return { read: [texts, ...beside], written: written.some((path) => dirname(path) === runs) ? [texts] : [] };
}

/** @param {string[]} args @param {string} cwd */
function readPaths(args, cwd) {
  const named = /** @type {const} */ ({ type: "string" });
  const options = {
    out_dir: named,
    runs_dir: named,
    config: named,
    checkpoint: named,
    host: named,
    join: named,
    dataset: named,
    tokenizer: named,
    state_dir: named,
    init_from: named,
    model_host: named,
    url: named,
  };
  const { values, positionals } = parseArgs({ args, options, strict: false, allowPositionals: true });
  /** @param {unknown} value */
  const text = (value) => typeof value === "string" ? value : null;
  const stateDir = text(values.state_dir);
  const outDir = resolve(cwd, text(values.out_dir) ?? text(values.runs_dir) ?? "runs");
  // A data set may be a text file; a configuration file may name one beside itself.
  const config = text(values.config);
  const initFrom = text(values.init_from);
  const inputs = [
    config && dirname(config),
    text(values.dataset),
    text(values.tokenizer),
    text(values.checkpoint),
    initFrom && runFolderOf(resolve(cwd, initFrom)),
    ...positionals,
    ...bases(cwd, text(values.checkpoint)),
  ]
    .filter((path) => path !== null);
  const resumed = positionals.map((path) => runFolderOf(resolve(cwd, path)));
  const written = [outDir, ...resumed];
  return {
    host: text(values.host),
    join: text(values.join),
    // All runs of a folder, whose texts lie in it.
    many: text(values.runs_dir) !== null,
    url: text(values.url),
    modelHost: text(values.model_host),
    stateDir: stateDir === null ? null : resolve(cwd, stateDir),
    folders: [...written, ...inputs.map((path) => resolve(cwd, path))],
    // A resumed run writes on in its own folder.
    written,
  };
}

/**
 * Where the base of a checkpoint's adapters may lie outside its folder: in its run's, or beside a copy.
 * @param {string} cwd @param {string | null} checkpoint
 */
function bases(cwd, checkpoint) {
  if (checkpoint === null) return [];
  const path = resolve(cwd, checkpoint);
  const folders = new Set([runFolderOf(path), dirname(path)]);
  folders.delete(path);
  return [...folders].map((folder) => join(folder, "base.safetensors"));
}

/**
 * An export is written beside its place and renamed; the folder around it stays out of reach, but for the default one.
 * @param {string[]} args @param {string} cwd
 */
function exportPaths(args, cwd) {
  const named = /** @type {const} */ ({ type: "string" });
  const { values } = parseArgs({
    ...{ args, options: { out: named, checkpoint: named }, strict: false, allowPositionals: true },
  });
  const { out, checkpoint } = values;
  const metrics = typeof checkpoint !== "string"
    ? []
    : [join(runFolderOf(resolve(cwd, checkpoint)), "metrics.jsonl")];
  if (typeof out !== "string" || out === "") return { places: [resolve(cwd, "runs", "exports")], metrics };
  const path = resolve(cwd, out);
  return { places: [path, join(dirname(path), `.writing-${basename(path)}`)], metrics };
}

/**
 * A model's files lie in its folder; nothing but the new run's folder is written.
 * @param {string[]} args @param {string} cwd
 */
function importPaths(args, cwd) {
  const named = /** @type {const} */ ({ type: "string" });
  const options = { out: named, adapter: named, model_host: named };
  const { values, positionals } = parseArgs({ args, options, strict: false, allowPositionals: true });
  const folderOf = (/** @type {string} */ path) => path.endsWith(".safetensors") ? dirname(path) : path;
  // An address is asked instead of read, and what it leads on to only if that was named.
  const address = /^https?:\/\//i.test(positionals[0] ?? "") ? positionals[0] : undefined;
  return {
    hosts: address === undefined
      ? []
      : [hostOf(address), typeof values.model_host === "string" ? values.model_host : null],
    from: [
      ...positionals.slice(0, address === undefined ? 1 : 0).map((path) => folderOf(resolve(cwd, path))),
      ...(typeof values.adapter === "string" ? [resolve(cwd, values.adapter)] : []),
    ],
    out: typeof values.out === "string" && values.out !== "" ? [resolve(cwd, values.out)] : [],
  };
}

/**
 * A text is read where it lies. Only the runs' folder is written, and where a coordinator has the texts, only that is asked.
 * @param {string[]} args @param {Surroundings} around
 */
function corpusPermissions(args, { root, cwd }) {
  const named = /** @type {const} */ ({ type: "string" });
  const options = { runs_dir: named, hub: named, tokenizer: named };
  const { values, positionals } = parseArgs({ args, options, strict: false, allowPositionals: true });
  const { runs_dir, hub, tokenizer } = values;
  const [order, file] = positionals;
  const inputs = [order === "add" ? file : undefined, tokenizer].filter((path) => typeof path === "string");
  const sources = inputs.map((path) => resolve(cwd, path));
  if (typeof hub === "string") return [...read(root, ...sources), ...net(hostOf(hub)), "--allow-env"];
  const folder = resolve(cwd, typeof runs_dir === "string" ? runs_dir : "runs");
  return [...read(root, ...sources, folder), ...(order === "list" ? [] : write(folder)), "--allow-env"];
}

/** A checkpoint lies in <run>/checkpoints/<step>; a run may be named by either. @param {string} path */
function runFolderOf(path) {
  const parent = dirname(path);
  return basename(parent) === "checkpoints" ? dirname(parent) : path;
}

/** @param {string | null} link @returns {string | null} */
function hostOf(link) {
  const url = link !== null && URL.canParse(link) ? new URL(link) : null;
  if (url === null) return null;
  return url.port === "" ? `${url.hostname}:${url.protocol === "https:" ? 443 : 80}` : url.host;
}

/** @param {string[]} paths */
function read(...paths) {
  return [`--allow-read=${[...new Set(paths)].join(",")}`];
}

/** @param {string[]} paths none = nothing */
function write(...paths) {
  if (paths.length === 0) return [];
  return [`--allow-write=${[...new Set(paths)].join(",")}`];
}

/** @param {(string | null)[]} programs those that are there */
function run(...programs) {
  const there = programs.filter((program) => program !== null);
  return there.length > 0 ? [`--allow-run=${there.join(",")}`] : [];
}

/** @param {(string | null)[]} hosts none = this machine only */
function net(...hosts) {
  const named = hosts.filter((host) => host !== null);
  return [`--allow-net=${(named.length > 0 ? named : ["127.0.0.1", "localhost"]).join(",")}`];
}
