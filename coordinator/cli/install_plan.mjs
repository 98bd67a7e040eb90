// What is missing on this machine and how to get it, decided from facts alone. Plain JavaScript, because it runs in
// Node before Deno is there. No I/O here (install.mjs does it): the same facts always give the same steps.
// @ts-check

/** Oldest Node that runs the scripts (parseArgs, fetch-free, stable ES modules). */
export const NODE_MAJOR_MIN = 20;

/**
 * @typedef {object} Facts
 * @property {string} nodeVersion such as "20.11.0"
 * @property {string} lockHash hash of package-lock.json
 * @property {string | null} installedLockHash hash that node_modules was made from; null = never finished
 * @property {string | null} chromium path of a Chromium, null = none found
 * @property {string | null} chromiumNamed what CHROMIUM_PATH says, null = not set
 * @property {boolean} otherBrowsers Firefox, WebKitGTK's driver and a virtual screen are there
 * @property {boolean} vulkanDriver an ICD file is installed
 * @property {boolean} root may install system packages
 * @property {boolean} apt apt-get is on the PATH
 * @property {string} os ID of /etc/os-release ("debian", "ubuntu"), or process.platform
 * @property {string} osVersion VERSION_ID of /etc/os-release
 * @property {string} pagesHash hash of the sources of the pages
 * @property {string | null} builtPagesHash hash that web/dist was built from; null = not built
 *
 * @typedef {{ kind: "npm" } | { kind: "chromium" } | { kind: "otherBrowsers" } | { kind: "vulkan"; backports: boolean } | { kind: "pages" }
 *   | { kind: "refuse"; message: string }} Step
 */

/**
 * The steps to take, in order. A "refuse" step ends the list: its message holds the remedy.
 * @param {Facts} facts
 * @param {{ browser?: boolean; otherBrowsers?: boolean; vulkan?: boolean; pages?: boolean }} [need] what the caller needs beside the
 *   packages; by default all but the other browsers, which only tests use
 * @returns {Step[]}
 */
export function planInstall(facts, need = {}) {
  if (Number(facts.nodeVersion.split(".")[0]) < NODE_MAJOR_MIN) {
    return [refusal(`Node ${facts.nodeVersion} is too old; install Node ${NODE_MAJOR_MIN} or newer.`)];
  }
  const { browser = true, otherBrowsers = false, vulkan = true, pages = true } = need;
  /** @type {Step[]} */
  const steps = [];
  if (facts.installedLockHash !== facts.lockHash) steps.push({ kind: "npm" });
  if (browser && facts.chromium === null) steps.push(chromiumStep(facts));
  // Where they cannot be installed, their tests say what to do; all others run.
  if (otherBrowsers && !facts.otherBrowsers && onDebian(facts)) steps.push({ kind: "otherBrowsers" });
  if (vulkan && !facts.vulkanDriver) steps.push(vulkanStep(facts));
  if (pages && facts.builtPagesHash !== facts.pagesHash) steps.push({ kind: "pages" });
  const end = steps.findIndex((step) => step.kind === "refuse");
  return end < 0 ? steps : steps.slice(0, end + 1);
}

/** @param {Facts} facts @returns {Step} */
function chromiumStep(facts) {
  if (facts.chromiumNamed !== null) {
    return refusal(
      `CHROMIUM_PATH is "${facts.chromiumNamed}", which does not exist; correct it, or unset it.`,
    );
  }
  if (onDebian(facts)) return { kind: "chromium" };
  const tail = "then run this again, or set CHROMIUM_PATH to a Chromium or Chrome binary.";
  // Ubuntu's chromium package is only a door to a snap, which does not start under automation everywhere.
  if (facts.os === "ubuntu") {
    return refusal(`Chromium was not found. Run: sudo snap install chromium (or install Chrome), ${tail}`);
  }
  if (facts.apt) return refusal(`Chromium was not found. Run: sudo apt-get install -y chromium, ${tail}`);
  return refusal(`Chromium was not found. Install Chromium or Chrome, ${tail}`);
}

/** May system packages be installed by name? @param {Facts} facts */
function onDebian(facts) {
  return facts.apt && facts.root && facts.os === "debian";
}

/** @param {Facts} facts @returns {Step} */
function vulkanStep(facts) {
  // Metal and Direct3D come with the system; only Linux needs a Vulkan driver from a package.
  if (facts.apt && facts.root) {
    return { kind: "vulkan", backports: facts.os === "debian" && facts.osVersion === "12" };
  }
  const command = facts.apt
    ? "sudo apt-get install -y mesa-vulkan-drivers"
    : "your system's Mesa Vulkan driver package";
  return refusal(
    `No Vulkan driver was found, so WebGPU has nothing to run on. Run or install: ${command}, then run this again.`,
  );
}

/** @param {string} message @returns {Step} */
function refusal(message) {
  return { kind: "refuse", message };
}

/**
 * The first Debian mirror that the present apt sources name, so that backports come from the same place.
 * Reads both the deb822 format and the one-line format.
 * @param {string[]} sources texts of the files under /etc/apt
 * @returns {{ uri: string; signedBy: string | null } | null}
 */
export function debianMirror(sources) {
  for (const text of sources) {
    for (const stanza of text.split(/\n\s*\n/)) {
      const found = deb822Mirror(stanza) ?? oneLineMirror(stanza);
      if (found !== null) return found;
    }
  }
  return null;
}

/** @param {string} stanza */
function deb822Mirror(stanza) {
  /** @param {string} name */
  const field = (name) => new RegExp(`^${name}:[ \\t]*(.+)$`, "mi").exec(stanza)?.[1]?.trim() ?? null;
  const uri = field("URIs")?.split(/\s+/)[0];
  const suites = field("Suites")?.split(/\s+/) ?? [];
  if (!uri || !suites.includes("bookworm")) return null;
  return { uri, signedBy: field("Signed-By") };
}

/** @param {string} stanza */
function oneLineMirror(stanza) {
  const line = /^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+bookworm\s/m.exec(stanza);
  if (!line || !line[2]) return null;
  return { uri: line[2], signedBy: /signed-by=(\S+)/.exec(line[1] ?? "")?.[1] ?? null };
}

/**
 * The sources file that adds backports from `mirror`.
 * @param {{ uri: string; signedBy: string | null }} mirror
 */
export function backportsSource(mirror) {
  const signed = mirror.signedBy === null ? "" : `Signed-By: ${mirror.signedBy}\n`;
  return `Types: deb\nURIs: ${mirror.uri}\nSuites: bookworm-backports\nComponents: main\n${signed}`;
}

/**
 * One field of /etc/os-release, unquoted.
 * @param {string} text
 * @param {string} name
 */
export function osField(text, name) {
  const line = text.split("\n").find((candidate) => candidate.startsWith(`${name}=`)) ?? "";
  return line.slice(name.length + 1).replace(/^"|"$/g, "");
}
