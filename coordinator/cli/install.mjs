// Brings a fresh machine to where Shoal runs: packages, a Chromium, a Vulkan driver, the built pages. Runs in Node.
// Decides nothing (install_plan.mjs does); says on stderr what it does, and nothing when all is there.
// It never changes more than node_modules, web/dist and, as root on Debian or Ubuntu, system packages.
// @ts-check
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import {
  accessSync,
  constants,
  existsSync,
  readdirSync,
  readFileSync,
  realpathSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { delimiter, dirname, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { backportsSource, debianMirror, osField, planInstall } from "./install_plan.mjs";

export const repositoryRoot = join(dirname(fileURLToPath(import.meta.url)), "..", "..");

const lockFile = join(repositoryRoot, "package-lock.json");
const lockStamp = join(repositoryRoot, "node_modules", ".shoal-lock");
const pagesStamp = join(repositoryRoot, "web", "dist", ".stamp");
const chromiumNames = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const otherBrowserNames = ["firefox-esr", "WebKitWebDriver", "Xvfb"];
const icdFolders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
const backportsFile = "/etc/apt/sources.list.d/shoal-backports.sources";

/** Sources of the pages: a change in any of them makes web/dist stale. */
const pageSources = ["web", "peer", "shaders", "vite.config.ts", "package-lock.json"];

/** An installation that could not be finished; `message` holds the remedy. */
export class InstallError extends Error {}

/**
 * Installs what is missing.
 * @param {{ browser?: boolean; otherBrowsers?: boolean; vulkan?: boolean; pages?: boolean }} [need] what is needed beside the packages
 */
export async function install(need = {}) {
  for (const step of planInstall(gatherFacts(), need)) {
    if (step.kind === "refuse") throw new InstallError(step.message);
    if (step.kind === "npm") await installPackages();
    if (step.kind === "chromium") await installChromium();
    if (step.kind === "otherBrowsers") await installOtherBrowsers();
    if (step.kind === "vulkan") await installVulkan(step.backports);
    if (step.kind === "pages") await buildPages();
  }
}

/** @returns {import("./install_plan.mjs").Facts} */
export function gatherFacts() {
  const release = existsSync("/etc/os-release") ? readFileSync("/etc/os-release", "utf8") : "";
  return {
    nodeVersion: process.versions.node,
    lockHash: hashOf([lockFile]),
    installedLockHash: installedLockHash(),
    chromium: findChromium(),
    chromiumNamed: process.env.CHROMIUM_PATH || null,
    otherBrowsers: otherBrowserNames.every((name) => onPath(name) !== null),
    vulkanDriver: process.platform !== "linux" || hasVulkanDriver(),
    root: process.getuid?.() === 0,
    apt: onPath("apt-get") !== null,
    os: osField(release, "ID") || process.platform,
    osVersion: osField(release, "VERSION_ID"),
    pagesHash: hashOf(pageFiles()),
    builtPagesHash: readOrNull(pagesStamp),
  };
}

/** What node_modules was made from: npm's own record counts if it is at least as new as the lock file, else our stamp. */
function installedLockHash() {
  const record = join(repositoryRoot, "node_modules", ".package-lock.json");
  if (existsSync(record) && statSync(record).mtimeMs >= statSync(lockFile).mtimeMs) return hashOf([lockFile]);
  return readOrNull(lockStamp);
}

/** Path of a Chromium or Chrome: CHROMIUM_PATH, else the first known name on the PATH. */
export function findChromium() {
  const named = process.env.CHROMIUM_PATH;
  if (named) return existsSync(named) ? named : null;
  for (const name of chromiumNames) {
    const path = onPath(name);
    if (path !== null) return path;
  }
  return null;
}

/**
 * The deno binary itself, as Deno.execPath() names it: permission to run it is by path. The package's own entry is a
 * script that starts the binary of the platform's package, until its install script has put the binary in place.
 */
export function findDeno() {
  const entry = join(repositoryRoot, "node_modules", ".bin", "deno");
  const path = existsSync(entry) ? realpathSync(entry) : entry;
  if (!path.endsWith(".cjs")) return path;
  const folder = join(repositoryRoot, "node_modules", "@deno");
  const names = existsSync(folder) ? readdirSync(folder) : [];
  return names.map((name) => join(folder, name, "deno")).find((file) => existsSync(file)) ?? path;
}

export function hasVulkanDriver() {
  if (process.env.VK_ICD_FILENAMES || process.env.VK_DRIVER_FILES) return true;
  return icdFolders.some((folder) =>
    existsSync(folder) && readdirSync(folder).some((name) => name.endsWith(".json"))
  );
}

async function installPackages() {
  say("installing packages (npm ci)");
  await run("npm", ["ci", "--no-audit", "--no-fund"], { PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD: "1" });
  writeFileSync(lockStamp, hashOf([lockFile]));
}

async function installChromium() {
  say("installing Chromium (apt-get install chromium)");
  await aptInstall(["chromium"]);
}

async function installOtherBrowsers() {
  say("installing Firefox and WebKitGTK (apt-get install firefox-esr webkit2gtk-driver xvfb)");
  await aptInstall(["--no-install-recommends", "firefox-esr", "webkit2gtk-driver", "xvfb"]);
}

/** @param {boolean} backports take the newer driver of bookworm-backports, several times as fast as Debian 12's own */
async function installVulkan(backports) {
  say("installing a Vulkan driver (mesa-vulkan-drivers)");
  if (backports && addBackports()) {
    try {
      await aptInstall(["-t", "bookworm-backports", "mesa-vulkan-drivers"]);
      return;
    } catch (error) {
      say(
        `backports did not work (${
          error instanceof Error ? error.message : error
        }); taking the stable driver`,
      );
    }
  }
  await aptInstall(["mesa-vulkan-drivers"]);
}

/** True if the backports suite is among the apt sources afterwards. */
function addBackports() {
  if (existsSync(backportsFile)) return true;
  const mirror = debianMirror(aptSources());
  if (mirror === null) return false;
  writeFileSync(backportsFile, backportsSource(mirror));
  return true;
}

function aptSources() {
  const folder = "/etc/apt/sources.list.d";
  const names = existsSync(folder) ? readdirSync(folder).sort() : [];
  const files = names.filter((name) => /\.(list|sources)$/.test(name)).map((name) => join(folder, name));
  return ["/etc/apt/sources.list", ...files].filter((file) => existsSync(file)).map((file) =>
    readFileSync(file, "utf8")
  );
}

/** @param {string[]} args */
async function aptInstall(args) {
  const environment = { DEBIAN_FRONTEND: "noninteractive" };
  await run("apt-get", ["update", "-qq"], environment);
  await run("apt-get", ["install", "-y", "-qq", ...args], environment);
}

async function buildPages() {
  say("building the pages (vite build)");
  await run(process.execPath, [
    join(repositoryRoot, "node_modules", "vite", "bin", "vite.js"),
    "build",
    "--logLevel",
    "warn",
  ]);
  writeFileSync(pagesStamp, hashOf(pageFiles()));
}

/**
 * All of the child's output goes to stderr: stdout belongs to data.
 * @param {string} command
 * @param {string[]} args
 * @param {Record<string, string>} [environment]
 */
async function run(command, args, environment = {}) {
  const child = spawn(command, args, {
    cwd: repositoryRoot,
    env: { ...process.env, ...environment },
    stdio: ["ignore", 2, 2],
  });
  const code = await new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (status, signal) => resolve(status ?? signal));
  });
  if (code !== 0) {
    throw new InstallError(`"${command} ${args.join(" ")}" ended with ${code}; see its messages above.`);
  }
}

function pageFiles() {
  return pageSources.flatMap((name) => filesUnder(join(repositoryRoot, name))).filter((file) =>
    !/_test\.tsx?$/.test(file)
  );
}

/** @param {string} path @returns {string[]} */
function filesUnder(path) {
  if (!existsSync(path)) return [];
  try {
    return readdirSync(path, { withFileTypes: true }).flatMap((entry) => {
      if (entry.name.startsWith("dist")) return [];
      const full = join(path, entry.name);
      return entry.isDirectory() ? filesUnder(full) : [full];
    }).sort();
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOTDIR") return [path];
    throw error;
  }
}

/** @param {string[]} files */
function hashOf(files) {
  const hash = createHash("sha256");
  for (const file of files) {
    hash.update(file.slice(repositoryRoot.length)).update("\0").update(readFileSync(file)).update("\0");
  }
  return hash.digest("hex");
}

/** @param {string} file */
function readOrNull(file) {
  return existsSync(file) ? readFileSync(file, "utf8").trim() : null;
}

/** @param {string} name @returns {string | null} */
function onPath(name) {
  for (const folder of (process.env.PATH ?? "").split(delimiter)) {
    const path = join(folder, name);
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {
      // Not in this folder.
    }
  }
  return null;
}

/** @param {string} text */
function say(text) {
  process.stderr.write(`shoal: ${text}\n`);
}
