// The installer's decisions on machines that this one is not: old Node, no root, Ubuntu, macOS, a stale lock.
import assert from "node:assert/strict";
import { backportsSource, debianMirror, osField, planInstall } from "./install_plan.mjs";
import type { Facts } from "./install_plan.mjs";

const ready: Facts = {
  nodeVersion: "20.11.0",
  lockHash: "l",
  installedLockHash: "l",
  chromium: "/usr/bin/chromium",
  chromiumNamed: null,
  otherBrowsers: true,
  vulkanDriver: true,
  root: true,
  apt: true,
  os: "debian",
  osVersion: "12",
  pagesHash: "p",
  builtPagesHash: "p",
};
const fresh = {
  ...ready,
  installedLockHash: null,
  chromium: null,
  otherBrowsers: false,
  vulkanDriver: false,
  builtPagesHash: null,
};

Deno.test("a machine that has everything needs no step", () => {
  assert.deepEqual(planInstall(ready), []);
});

Deno.test("a fresh Debian 12 as root gets everything, the driver from backports", () => {
  assert.deepEqual(planInstall(fresh), [
    { kind: "npm" },
    { kind: "chromium" },
    { kind: "vulkan", backports: true },
    { kind: "pages" },
  ]);
});

Deno.test("the other browsers come where tests ask for them and Debian has them; their lack refuses nothing", () => {
  const missing = { ...ready, otherBrowsers: false };
  assert.deepEqual(planInstall(missing), []);
  assert.deepEqual(planInstall(missing, { otherBrowsers: true }), [{ kind: "otherBrowsers" }]);
  for (const elsewhere of [{ root: false }, { os: "ubuntu" }, { apt: false }]) {
    assert.deepEqual(planInstall({ ...missing, ...elsewhere }, { otherBrowsers: true }), []);
  }
  assert.deepEqual(planInstall(ready, { otherBrowsers: true }), []);
});

Deno.test("a newer Debian takes its own driver", () => {
  const steps = planInstall({ ...ready, vulkanDriver: false, osVersion: "13" });
  assert.deepEqual(steps, [{ kind: "vulkan", backports: false }]);
});

Deno.test("a changed lock file or changed page sources are built again", () => {
  assert.deepEqual(planInstall({ ...ready, lockHash: "m" }), [{ kind: "npm" }]);
  assert.deepEqual(planInstall({ ...ready, pagesHash: "q" }), [{ kind: "pages" }]);
});

Deno.test("only what the verb needs is installed", () => {
  const steps = planInstall(fresh, { browser: false, vulkan: false, pages: false });
  assert.deepEqual(steps, [{ kind: "npm" }]);
});

Deno.test("an old Node is refused before anything else, with the version wanted", () => {
  const [step, ...rest] = planInstall({ ...fresh, nodeVersion: "18.19.1" });
  assert.deepEqual(rest, []);
  assert.ok(step?.kind === "refuse" && /18\.19\.1/.test(step.message) && /20/.test(step.message));
});

Deno.test("without root the command to run is named, and nothing follows it", () => {
  const cases: [Partial<Facts>, RegExp][] = [
    [{ chromium: null, root: false }, /sudo apt-get install -y chromium/],
    [{ chromium: null, os: "ubuntu", osVersion: "24.04" }, /snap install chromium/],
    [{ chromium: null, os: "darwin", apt: false, root: false }, /CHROMIUM_PATH/],
    [{ chromium: null, chromiumNamed: "/gone" }, /CHROMIUM_PATH is "\/gone"/],
    [{ vulkanDriver: false, root: false }, /sudo apt-get install -y mesa-vulkan-drivers/],
    [{ vulkanDriver: false, apt: false, os: "fedora" }, /Vulkan driver/],
  ];
  for (const [change, remedy] of cases) {
    const steps = planInstall({ ...ready, ...change, builtPagesHash: null });
    const step = steps.at(-1);
    assert.equal(steps.length, 1);
    assert.ok(step?.kind === "refuse" && remedy.test(step.message), JSON.stringify(steps));
  }
});

Deno.test("backports come from the mirror that the machine already uses", () => {
  const deb822 = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n" +
    "Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n\nTypes: deb\nURIs: http://mirror.example/security\n" +
    "Suites: bookworm-security\nComponents: main\n";
  const other = "Types: deb\nURIs: https://else.example/tool\nSuites: nodistro\nComponents: main\n";
  const mirror = debianMirror([other, deb822]);
  assert.deepEqual(mirror, { uri: "http://mirror.example/debian", signedBy: "/usr/share/keyrings/k.gpg" });
  assert.equal(
    backportsSource(mirror),
    "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm-backports\nComponents: main\n" +
      "Signed-By: /usr/share/keyrings/k.gpg\n",
  );
});

Deno.test("the one-line format of apt sources is read too", () => {
  const line = "# main\ndeb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main\n";
  assert.deepEqual(debianMirror([line]), { uri: "http://mirror.example/debian", signedBy: "/k.gpg" });
  assert.deepEqual(debianMirror(["deb http://m.example/debian bookworm main contrib"]), {
    uri: "http://m.example/debian",
    signedBy: null,
  });
  assert.equal(debianMirror(["deb http://m.example/debian trixie main"]), null);
});

Deno.test("os-release fields come unquoted, absent ones empty", () => {
  assert.equal(osField('ID=debian\nVERSION_ID="12"\n', "VERSION_ID"), "12");
  assert.equal(osField("ID=debian\n", "ID"), "debian");
  assert.equal(osField("ID=arch\n", "VERSION_ID"), "");
});
