#!/usr/bin/env node
// The command `shoal <verb>`: installs what is missing, then hands over to Deno with narrow permissions.
// Thin on purpose: the verbs live in coordinator/cli/main.ts. Plain JavaScript, since Deno may not be there yet.
// @ts-check
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { findChromium, findDeno, install, InstallError, repositoryRoot } from "./coordinator/cli/install.mjs";
import { completionScript, SHELLS } from "./coordinator/cli/completion.mjs";
import { pairsAsFlags, unknownFlag } from "./coordinator/cli/pairs.mjs";
import { permissionsFor } from "./coordinator/cli/permissions.mjs";
import { benchNames, scriptFor, toolHelp, tools } from "./coordinator/cli/tools.mjs";
import { mainHelp, seeHelp, unknownMessage, verbHelp, verbs } from "./coordinator/cli/usage.mjs";

/** Signals that the verb decides about. @type {NodeJS.Signals[]} */
const passedOn = ["SIGINT", "SIGTERM", "SIGHUP"];

/**
 * @typedef {import("./coordinator/cli/permissions.mjs").Surroundings} Surroundings
 * @typedef {{ browser: boolean; vulkan: boolean; pages: boolean }} Need
 */

/**
 * What a verb needs installed beside the packages; doctor installs nothing more, it reports.
 * @type {Record<string, Need>}
 */
const needs = {
  demo: { browser: true, vulkan: true, pages: true },
  run: { browser: false, vulkan: true, pages: true },
  coordinator: { browser: false, vulkan: false, pages: true },
  resume: { browser: false, vulkan: false, pages: true },
  peer: { browser: false, vulkan: true, pages: false },
  generate: { browser: false, vulkan: false, pages: false },
  import: { browser: false, vulkan: false, pages: false },
  eval: { browser: false, vulkan: false, pages: false },
  serve: { browser: false, vulkan: false, pages: false },
  corpus: { browser: false, vulkan: false, pages: false },
  export: { browser: false, vulkan: false, pages: false },
  doctor: { browser: false, vulkan: false, pages: true },
};

/**
 * @param {string[]} commandLine
 * @returns {Promise<number>} the exit code
 */
async function main([name, ...given]) {
  const { version, scripts } = JSON.parse(readFileSync(join(repositoryRoot, "package.json"), "utf8"));
  if (name === "--version" || name === "-v") return print(version);
  if (name === undefined || name === "--help" || name === "-h" || name === "help") {
    return print(mainHelp(version));
  }
  const tool = tools.find((candidate) => candidate.name === name);
  if (tool !== undefined) return await runTool(tool, given, scripts);
  const verb = verbs.find((candidate) => candidate.name === name);
  if (verb === undefined) {
    const names = [...verbs, ...tools].map((candidate) => candidate.name);
    return refuse(`${unknownMessage("verb", name, names)}\n\n${mainHelp(version)}`, 2);
  }
  const args = pairsAsFlags(verb, given);
  if (args.includes("--help") || args.includes("-h")) return print(verbHelp(verb));
  const unknown = unknownFlag(verb, args);
  if (unknown !== null) {
    return refuse(`${unknownMessage("flag", unknown.typed, unknown.known)}; ${seeHelp(verb.name)}`, 2);
  }
  try {
    await install(needOf(verb.name, args));
  } catch (error) {
    if (error instanceof InstallError) return refuse(error.message, 1);
    throw error;
  }
  return await runInDeno(verb.name, args);
}

/**
 * @param {import("./coordinator/cli/tools.mjs").Tool} tool
 * @param {string[]} args
 * @param {Record<string, string>} scripts
 * @returns {Promise<number>} the exit code
 */
async function runTool(tool, args, scripts) {
  const asked = args[0] === undefined || args[0] === "--help" || args[0] === "-h";
  if (tool.name === "completion") {
    const script = completionScript(args[0] ?? "");
    if (script !== null) return print(script.trimEnd());
    return asked ? print(toolHelp(tool)) : refuse(`unknown shell "${args[0]}"; use ${SHELLS.join(", ")}`, 2);
  }
  if (tool.name === "bench" && asked) {
    return print(`${toolHelp(tool)}\n\n${benchNames(scripts).map((name) => `  ${name}`).join("\n")}`);
  }
  const found = scriptFor(tool.name, args, scripts);
  if (found === null) {
    const all = benchNames(scripts);
    return refuse(`${unknownMessage("benchmark", args[0] ?? "", all)}; there are ${all.join(", ")}`, 2);
  }
  try {
    const browser = found.script === "bench:engine" || found.script === "bench:recovery";
    await install({ browser, vulkan: true, pages: browser });
  } catch (error) {
    if (error instanceof InstallError) return refuse(error.message, 1);
    throw error;
  }
  return await runScript(found.script, found.args);
}

/**
 * A script of the package with what it needs on its PATH, from wherever the command was called.
 * @param {string} script
 * @param {string[]} args
 * @returns {Promise<number>}
 */
function runScript(script, args) {
  const npm = process.platform === "win32" ? "npm.cmd" : "npm";
  const child = spawn(npm, ["run", "--silent", script, "--", ...args], {
    cwd: repositoryRoot,
    stdio: "inherit",
  });
  for (const signal of passedOn) process.on(signal, () => child.kill(signal));
  return new Promise((resolve) => {
    child.once("error", (error) => resolve(refuse(`npm did not start: ${error.message}`, 1)));
    child.once("exit", (code, signal) => resolve(code ?? (signal === "SIGINT" ? 130 : 1)));
  });
}

/** A demo without tabs needs no browser. @param {string} verb @param {string[]} args */
function needOf(verb, args) {
  const noTabs = /(^| )--tabs[= ]0( |$)/.test(args.join(" "));
  return { ...needs[verb], ...(noTabs ? { browser: false } : {}) };
}

/**
 * Resolves to the verb's exit code.
 * @param {string} verb
 * @param {string[]} args
 * @returns {Promise<number>}
 */
function runInDeno(verb, args) {
  const deno = findDeno();
  const around = { root: repositoryRoot, cwd: process.cwd(), tmp: tmpdir(), deno, chromium: findChromium() };
  const script = join(repositoryRoot, "coordinator", "cli", "main.ts");
  const config = ["--config", join(repositoryRoot, "deno.json"), "--quiet", "--no-prompt"];
  const child = spawn(
    deno,
    ["run", ...config, ...permissionsFor(verb, args, around), script, verb, ...args],
    {
      stdio: "inherit",
      env: environment(around),
    },
  );
  for (const signal of passedOn) process.on(signal, () => child.kill(signal));
  return new Promise((resolve) => {
    child.once("error", (error) => resolve(refuse(`Deno did not start: ${error.message}; run npm ci`, 1)));
    child.once("exit", (code, signal) => resolve(code ?? (signal === "SIGINT" ? 130 : 1)));
  });
}

/** @param {Surroundings} around */
function environment(around) {
  const runtimeFolder = process.env.XDG_RUNTIME_DIR ?? around.tmp;
  const chromium = around.chromium === null ? {} : { CHROMIUM_PATH: around.chromium };
  // Without the backend named, a missing Vulkan driver silently becomes a slow GL adapter of the same name.
  const backend = process.platform === "linux" ? { DENO_WEBGPU_BACKEND: "vulkan" } : {};
  const known = { DENO_NO_UPDATE_CHECK: "1", SHOAL_NODE_VERSION: process.versions.node };
  return { ...backend, ...known, XDG_RUNTIME_DIR: runtimeFolder, ...process.env, ...chromium };
}

/** @param {string} text */
function print(text) {
  process.stdout.write(`${text}\n`);
  return 0;
}

/** @param {string} text @param {number} code */
function refuse(text, code) {
  process.stderr.write(`shoal: ${text}\n`);
  return code;
}

process.exitCode = await main(process.argv.slice(2));
