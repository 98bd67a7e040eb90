// The gate: everything that `npm test` runs, in groups, counted. Runs in Node; the tests themselves run in Deno.
// Not a test framework (deno test is). The last line printed is always "N passed, N failed"; a group without tests,
// a skipped test and a crash count as failures, so that nothing can go missing silently.
// @ts-check
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { findDeno, install, InstallError, repositoryRoot } from "../coordinator/cli/install.mjs";
import { countJunit, groupOf, testGroups } from "./groups.mjs";

const tsc = join(repositoryRoot, "node_modules", "typescript", "bin", "tsc");

/** A group that hangs would hold a build machine forever; the longest healthy one takes a quarter of an hour. */
const GROUP_TIMEOUT_MS = 30 * 60_000;

/** Type-checked by tsc against the browser's types instead of Deno's. */
const browserOnly = /^(web\/(?!.*_test\.tsx?$)|peer\/(browser|worker)\.ts$)/;

const usage = `usage: npm test [-- --only=${testGroups.join(",")}] [path ...]
Runs formatting, lint, type checks and tests. Paths narrow the test groups to files whose path contains one of them.`;

/** @typedef {{ passed: number; failed: number }} Counts */

/**
 * Set while a child runs, so that an interrupt takes the child's whole process group with it.
 * @type {import("node:child_process").ChildProcess | null}
 */
let running = null;

async function main() {
  const options = readOptions(process.argv.slice(2));
  const scratch = mkdtempSync(join(tmpdir(), "shoal-test-"));
  process.once("SIGINT", () => end(130));
  process.once("SIGTERM", () => end(143));
  process.once("exit", () => rmSync(scratch, { recursive: true, force: true }));
  const totals = { passed: 0, failed: 0 };
  try {
    await install(needOf(options.only));
    for (const name of options.only) add(totals, await runGroup(name, options.paths, scratch));
  } catch (error) {
    console.log(error instanceof InstallError ? error.message : error);
    totals.failed += 1;
  }
  console.log(`${totals.passed} passed, ${totals.failed} failed`);
  process.exitCode = totals.failed > 0 ? 1 : 0;
}

/** @param {string[]} args */
function readOptions(args) {
  try {
    const options =
      /** @type {const} */ ({ only: { type: "string" }, help: { type: "boolean", short: "h" } });
    const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
    if (values.help) {
      console.log(usage);
      process.exit(0);
    }
    const only = values.only === undefined ? testGroups : values.only.split(",");
    const unknown = only.find((name) => !testGroups.includes(name));
    if (unknown !== undefined) throw new Error(`unknown group "${unknown}"`);
    return { only: testGroups.filter((name) => only.includes(name)), paths: positionals };
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : error}\n${usage}`);
    process.exit(2);
  }
}

/** @param {string[]} only */
function needOf(only) {
  const runsCode = only.some((name) => ["unit", "kernel", "sim", "e2e"].includes(name));
  return {
    vulkan: runsCode,
    ...{ browser: only.includes("e2e"), otherBrowsers: only.includes("e2e") },
    pages: only.includes("unit") || only.includes("e2e"),
  };
}

/** @param {Counts} totals @param {Counts} counts */
function add(totals, counts) {
  totals.passed += counts.passed;
  totals.failed += counts.failed;
}

/** @param {string} name @param {string[]} paths @param {string} scratch */
async function runGroup(name, paths, scratch) {
  const start = Date.now();
  console.log(`\n== ${name}`);
  const counts = await groupCounts(name, paths, scratch);
  if (counts.passed + counts.failed === 0) {
    console.log(`group "${name}" ran no test`);
    counts.failed = 1;
  }
  const seconds = ((Date.now() - start) / 1000).toFixed(1);
  console.log(`== ${name}: ${counts.passed} passed, ${counts.failed} failed, ${seconds} s`);
  return counts;
}

/** @param {string} name @param {string[]} paths @param {string} scratch @returns {Promise<Counts>} */
async function groupCounts(name, paths, scratch) {
  if (name === "fmt") return await checks([[findDeno(), ["fmt", "--check"]]]);
  if (name === "lint") return await checks([[findDeno(), ["lint"]]]);
  const files = sourceFiles(repositoryRoot, "");
  if (name === "check") {
    const checked = files.filter((file) => /\.(tsx?|mjs)$/.test(file) && !browserOnly.test(file));
    return await checks([[findDeno(), ["check", "--quiet", ...checked]], [process.execPath, [
      tsc,
      "--noEmit",
      "-p",
      "web",
    ]]]);
  }
  /** @param {string} file */
  const wanted = (file) => paths.length === 0 || paths.some((path) => file.includes(path));
  return await denoTest(name, files.filter((file) => groupOf(file) === name && wanted(file)), scratch);
}

/** Each command is one test. @param {[string, string[]][]} commands */
async function checks(commands) {
  const counts = { passed: 0, failed: 0 };
  for (const [command, args] of commands) {
    const code = await run(command, args);
    counts[code === 0 ? "passed" : "failed"] += 1;
  }
  return counts;
}

/** @param {string} name @param {string[]} files @param {string} scratch @returns {Promise<Counts>} */
async function denoTest(name, files, scratch) {
  if (files.length === 0) return { passed: 0, failed: 0 };
  const report = join(scratch, `${name}.xml`);
  const runtimeFolder = join(scratch, "xdg");
  mkdirSync(runtimeFolder, { recursive: true, mode: 0o700 });
  const code = await run(findDeno(), [
    "test",
    "--no-check",
    `--junit-path=${report}`,
    // Tests open devices and native add-ons that Deno gives only together; what the program may touch is in permissions.mjs.
    "--allow-all",
    ...files,
  ], {
    // Without the first, a missing driver silently becomes a slow GL adapter; without the second, wgpu warns at length.
    DENO_WEBGPU_BACKEND: "vulkan",
    XDG_RUNTIME_DIR: runtimeFolder,
    // Keeps Playwright from a look into /proc that Deno allows only with every permission there is (demo_peers.ts).
    __IS_WSL_TEST__: "1",
  });
  const counts = existsSync(report) ? countJunit(readFileSync(report, "utf8")) : { passed: 0, failed: 0 };
  // A file that fails to load, or a crash, leaves no failed test behind.
  if (code !== 0 && counts.failed === 0) counts.failed = 1;
  return counts;
}

/**
 * Runs a command in a process group of its own; resolves to its exit code, or what ended it.
 * @param {string} command
 * @param {string[]} args
 * @param {Record<string, string>} [environment]
 * @returns {Promise<number | string>}
 */
function run(command, args, environment = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd: repositoryRoot,
      env: { ...process.env, DENO_NO_UPDATE_CHECK: "1", ...environment },
      stdio: ["ignore", "inherit", "inherit"],
      detached: true,
    });
    running = child;
    const timer = setTimeout(() => {
      console.log(`stopped after ${GROUP_TIMEOUT_MS / 60_000} minutes: ${command} ${args[0]}`);
      killGroup(child);
    }, GROUP_TIMEOUT_MS);
    /** @param {number | string} outcome */
    const finish = (outcome) => {
      clearTimeout(timer);
      running = null;
      resolve(outcome);
    };
    child.once("error", (error) => {
      console.log(error.message);
      finish("error");
    });
    child.once("exit", (code, signal) => finish(code ?? signal ?? "unknown"));
  });
}

/** @param {import("node:child_process").ChildProcess} child */
function killGroup(child) {
  if (child.pid === undefined) return;
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch {
    // It is gone already.
  }
}

/** @param {number} code */
function end(code) {
  if (running !== null) killGroup(running);
  process.exit(code);
}

/**
 * Paths of source files from the repository's root, sorted, so that every run has the same order.
 * @param {string} folder
 * @param {string} prefix
 * @returns {string[]}
 */
function sourceFiles(folder, prefix) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const skipped = entry.name.startsWith(".") || entry.name.startsWith("dist") ||
      ["node_modules", "runs", "screenshots"].includes(entry.name);
    if (skipped) return [];
    const path = prefix + entry.name;
    return entry.isDirectory() ? sourceFiles(join(folder, entry.name), `${path}/`) : [path];
  }).sort();
}

await main();
