// The files with which a coordinator is deployed, read as text: they name flags, ports, folders and files that exist, and keep
// the restrictions that docs/self-hosting.md promises. Nothing is started here.
import assert from "node:assert/strict";
import { parseVerb, verbNamed } from "../coordinator/cli/options.ts";
import { createRunState } from "../coordinator/core/create.ts";
import { metricsText } from "../coordinator/core/metrics.ts";
import { readConfig } from "../peer/model/config.ts";
import { specOf } from "../peer/model/layout.ts";

function read(name: string): string {
  return Deno.readTextFileSync(new URL(`../${name}`, import.meta.url));
}

/** The words of a command line that starts the coordinator, after its verb. */
function coordinatorFlags(text: string): string[] {
  const words = text.replace(/[[\]",]/g, " ").split(/\s+/).filter((word) => word !== "");
  const start = words.findIndex((word, i) => word === "coordinator" && words[i + 1]?.startsWith("--"));
  assert.ok(start >= 0, "no coordinator is started");
  const flags: string[] = [];
  for (const word of words.slice(start + 1)) {
    if (!word.startsWith("--") && !flags.at(-1)?.startsWith("--")) break;
    flags.push(word);
  }
  return flags;
}

Deno.test("deploy: every place starts the coordinator with flags that it has", () => {
  const verb = verbNamed("coordinator");
  const service = read("docs/deploy/shoal.service");
  const unit = /^ExecStart=(.*)$/m.exec(service)![1]!;
  const compose = read("compose.yaml").replace(/\$\{SHOAL_DOMAIN:[^}]*\}/g, "train.example.org");
  const image = /^CMD (.*)$/m.exec(read("Dockerfile"))![1]!;
  for (const [where, text] of [["service", unit], ["compose", compose], ["image", image]] as const) {
    const { flags } = parseVerb(verb, coordinatorFlags(text));
    assert.equal(flags.port, "8080", where);
    assert.notEqual(flags.or_resume, undefined, `${where} would not go on after a restart`);
    assert.ok(flags.out_dir?.startsWith("/"), where);
  }
});

Deno.test("deploy: one run becomes several by a file beside each, which changes nothing that is restricted", () => {
  const verb = verbNamed("coordinator");
  const dropIn = read("docs/deploy/shoal-runs.conf"), override = read("docs/deploy/compose.runs.yaml");
  const unit = /^ExecStart=(\/.*)$/m.exec(dropIn)![1]!;
  const compose = override.replace(/\$\{SHOAL_DOMAIN:[^}]*\}/g, "train.example.org");
  for (const [where, text] of [["service", unit], ["compose", compose]] as const) {
    const { flags, config } = parseVerb(verb, coordinatorFlags(text));
    assert.deepEqual([flags.port, config], ["8080", {}], where);
    assert.ok(flags.runs_dir?.startsWith("/"), where);
    for (const single of ["out_dir", "or_resume", "name"]) assert.equal(flags[single], undefined, where);
    assert.match(flags.config!, /runs\.json$/);
  }
  // systemd adds to a list of commands unless it is emptied first.
  assert.match(dropIn, /^ExecStart=\nExecStart=\//m);
  const keys = [...dropIn.matchAll(/^(\w+)=/gm)].map((match) => match[1]!);
  assert.deepEqual([...new Set(keys)].sort(), ["ExecStart", "TimeoutStopSec"]);
  for (const line of ["read_only", "cap_drop", "security_opt", "user"]) {
    assert.ok(!override.includes(line), line);
  }
  for (
    const seconds of [/^TimeoutStopSec=(\d+)$/m.exec(dropIn), /stop_grace_period: (\d+)s/.exec(override)]
  ) {
    assert.ok(Number(seconds?.[1]) > 60, "the last checkpoints would be cut off");
  }
  const config = readConfig(JSON.parse(read("docs/deploy/runs.json")));
  assert.equal(config.iceServers.length, 2);
  assert.match(override, /- \.\/docs\/deploy\/runs\.json:\/config\/runs\.json:ro/);
});

Deno.test("deploy: the example configuration is one, and the files that compose mounts are there", () => {
  const config = readConfig(JSON.parse(read("docs/deploy/run.json")));
  assert.equal(config.iceServers.length, 2);
  const mounted = [...read("compose.yaml").matchAll(/^\s+- \.\/([^:]+):/gm)].map((match) => match[1]!);
  assert.deepEqual(mounted.sort(), ["docs/deploy/Caddyfile", "docs/deploy/run.json"]);
  for (const name of mounted) assert.ok(read(name).length > 0);
});

Deno.test("deploy: the proxy leads to the coordinator's port and logs nothing", () => {
  const proxy = read("docs/deploy/Caddyfile");
  assert.match(proxy, /reverse_proxy coordinator:8080/);
  assert.doesNotMatch(proxy, /^\s*log\b/m);
});

Deno.test("deploy: container and service have no more rights than a coordinator needs", () => {
  const compose = read("compose.yaml");
  for (const line of ["read_only: true", "cap_drop: [ALL]", "no-new-privileges:true"]) {
    assert.ok(compose.includes(line), line);
  }
  const image = read("Dockerfile");
  assert.ok(image.indexOf("USER node") > image.indexOf("npm ci"), "it runs as root");
  assert.match(image, /^ENV DENO_DIR=\/tmp\/deno$/m);
  assert.ok(compose.includes("tmpfs: [/tmp]"), "Deno could not write there");
  const service = read("docs/deploy/shoal.service");
  const promised = ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes"];
  for (const line of [...promised, "PrivateDevices=yes", "CapabilityBoundingSet=", "UMask=0077"]) {
    assert.match(service, new RegExp(`^${line}$`, "m"));
  }
  // Without any of these three the service does not start: tried under systemd 252.
  assert.match(service, /^SystemCallFilter=@system-service @pkey$/m);
  assert.match(service, /^RestrictAddressFamilies=.* AF_NETLINK$/m);
  assert.match(service, /^Environment=DENO_DIR=\/var\/cache\/shoal$/m);
});

Deno.test("deploy: the relay server lets nobody into private networks", () => {
  const compose = read("compose.yaml");
  for (const network of ["10.0.0.0", "127.0.0.0", "172.16.0.0", "192.168.0.0", "169.254.0.0"]) {
    assert.ok(compose.includes(`--denied-peer-ip=${network}-`), network);
  }
});

Deno.test("deploy: every query of the Grafana dashboard names a metric that a run has", () => {
  const config = readConfig({ n_layer: 2 });
  const text = metricsText(createRunState(config, specOf(config, 7)));
  const known = new Set([...text.matchAll(/^# TYPE (\S+)/gm)].map((match) => match[1]!));
  const { panels } = JSON.parse(read("docs/deploy/grafana.json")) as {
    panels: { title: string; targets: { expr: string }[] }[];
  };
  const named = panels.flatMap(({ targets }) =>
    targets.flatMap(({ expr }) => expr.match(/shoal_\w+/g) ?? [])
  );
  assert.ok(named.length > 15 && known.size > 20);
  for (const name of named) assert.ok(known.has(name), name);
});
