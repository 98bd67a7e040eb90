// The HTTP side: who may see and do what, that every error is {code, message}, and that only built pages are served.
// State files have their own tests in state_test.ts.
import assert from "node:assert/strict";
import { join } from "node:path";
import { ADMIN, admit, assertProblem, JOIN, LINK, openSite, write } from "../../test/support/site.ts";
import { HEARTBEAT } from "../../test/support/run_harness.ts";
import { type PeerMessage, PROTOCOL_VERSION } from "../../peer/wire/control.ts";

type Heartbeat = PeerMessage & { type: "heartbeat" };
type Method = "GET" | "POST" | "PUT" | "DELETE";
const FOR_ANY_TOKEN: [Method, string][] = [
  ["GET", "/api/invite"],
  ["GET", "/api/status"],
  ["GET", "/api/corpus"],
  ["GET", "/metrics"],
];
const FOR_ADMIN: [Method, string][] = [
  ["GET", "/api/trace"],
  ["POST", "/api/control"],
  ["POST", "/api/evict"],
  ["POST", "/api/drain"],
  ["POST", "/api/change"],
  ["POST", "/api/rollback"],
  ["POST", "/api/replan"],
  ["POST", "/api/pin"],
  ["GET", "/api/bans"],
  ["DELETE", "/api/bans/b1"],
  ["GET", "/api/organizers"],
  ["POST", "/api/organizers"],
  ["DELETE", "/api/organizers/o1"],
  ["POST", "/api/checkpoints/step-000000003/verify"],
  ["DELETE", "/api/checkpoints/step-000000003"],
  ["GET", "/api/checkpoints/step-000000003/config.json"],
  ["GET", "/api/checkpoints/step-000000003/export/gguf"],
];
const FOR_PEERS: [Method, string][] = [["GET", "/api/state/1/0/some-hash"], ["PUT", "/api/state/1/0"]];

Deno.test("http: without a token or with a wrong one every API path is 401, as {code, message}", async () => {
  await using site = await openSite();
  for (const [method, path] of [...FOR_ANY_TOKEN, ...FOR_ADMIN, ...FOR_PEERS]) {
    for (const token of [undefined, "", "wrong", JOIN.slice(1), `${JOIN}x`, `${ADMIN} `.repeat(2)]) {
      const response = await site.ask(path, { method, ...(token === undefined ? {} : { token }) });
      await assertProblem(response, 401, "bad-token");
    }
  }
});

Deno.test("http: the join token reads, and steers nothing", async () => {
  await using site = await openSite();
  for (const [method, path] of FOR_ANY_TOKEN) {
    const response = await site.ask(path, { method, token: JOIN });
    assert.equal(response.status, 200, path);
    await response.arrayBuffer();
  }
  for (const [method, path] of [...FOR_ADMIN, ...FOR_PEERS]) {
    await assertProblem(await site.ask(path, { method, token: JOIN }), 401, "bad-token");
  }
  const stop = { method: "POST", token: JOIN, body: JSON.stringify({ action: "stop" }) };
  await site.ask("/api/control", stop);
  assert.equal(site.shell.core.state.status, "waiting");
});

Deno.test("http: a volunteer sees the run, but neither log, links nor checkpoints", async () => {
  await using site = await openSite();
  admit(site, "a");
  site.shell.checkpoints.push({
    step: 1,
    name: "step-000000001",
    bytes: 1,
    valLoss: null,
    files: ["config.json"],
  });
  admit(site, "b");
  const links = [{ peer: "b", rttMs: 12, upBytesPerS: 5, path: "direct" as const }];
  site.shell.feed({ type: "message", peer: "a", message: { ...HEARTBEAT as Heartbeat, links } });
  const named = { runtime: "tab" as const, adapter: "none", engine: "cpu", name: "Ada's laptop" };
  site.shell.feed({ type: "join", peer: { id: "c", ...named } });
  const seen = async (token: string) => await (await site.ask("/api/status", { token })).json();
  const [volunteer, organizer] = [await seen(JOIN), await seen(ADMIN)];
  assert.deepEqual([volunteer.events, volunteer.checkpoints, volunteer.joinLink], [[], [], null]);
  assert.ok(!JSON.stringify(volunteer).includes("secret-link"));
  assert.equal(organizer.peers[0].linkFigures.length, 1);
  assert.deepEqual(organizer.peers.map((peer: { name?: string }) => peer.name), [
    undefined,
    undefined,
    named.name,
  ]);
  assert.ok(!JSON.stringify(volunteer).includes(named.name), "names are for the organizer");
  assert.ok(volunteer.peers.every((peer: object) => !("linkFigures" in peer)), "links of others are shown");
  const metrics = async (token: string) => await (await site.ask("/metrics", { token })).text();
  assert.match(
    await metrics(ADMIN),
    /^shoal_link_round_trip_seconds\{from="a",to="b",path="direct"\} 0\.012$/m,
  );
  assert.doesNotMatch(await metrics(JOIN), /^shoal_link_/m);
  assert.ok(organizer.events.length > 0);
  assert.equal(organizer.checkpoints.length, 1);
  assert.equal(organizer.joinLink, LINK);
  for (const body of [volunteer, organizer]) {
    const text = JSON.stringify(body);
    for (const secret of [JOIN, ADMIN, site.sockets.tickets.get("a")!]) assert.ok(!text.includes(secret));
  }
});

Deno.test("http: the invite says what a contributor decides by", async () => {
  await using site = await openSite();
  const invite = await (await site.ask("/api/invite", { token: JOIN })).json();
  assert.deepEqual([invite.runName, invite.operator, invite.state], ["the run", "an operator", "waiting"]);
  assert.equal(invite.version, PROTOCOL_VERSION);
  assert.ok(invite.memoryBytes > 0 && invite.bytesPerStep > 0 && invite.params > 0);
});

Deno.test("http: the corpus is the tokens, byte for byte", async () => {
  await using site = await openSite();
  const response = await site.ask("/api/corpus", { token: JOIN });
  assert.deepEqual(new Uint8Array(await response.arrayBuffer()), Uint8Array.of(0, 1, 2, 1));
});

Deno.test("http: the organizer pauses, stops and puts out; nonsense is named", async () => {
  await using site = await openSite();
  admit(site, "a");
  const post = (path: string, body: string) => site.ask(path, { method: "POST", token: ADMIN, body });
  for (const body of ["", "[]", "null", "{", '{"action":"explode"}', '{"action":{"toString":1}}']) {
    await assertProblem(await post("/api/control", body), 400, "usage");
  }
  for (const body of ['{"peer":"z"}', '{"peer":"constructor"}', '{"peer":"__proto__"}', '{"peer":7}', "{}"]) {
    await assertProblem(await post("/api/evict", body), 404, "usage");
  }
  await assertProblem(
    await post("/api/control", JSON.stringify({ action: "pause", fill: "x".repeat(5000) })),
    400,
    "usage",
  );
  assert.equal((await post("/api/control", '{"action":"pause"}')).status, 200);
  assert.equal(site.shell.core.state.paused, true);
  const status = await (await post("/api/evict", '{"peer":"a"}')).json();
  assert.deepEqual(status.peers, []);
  await post("/api/control", '{"action":"stop"}');
  assert.equal(site.shell.core.state.status, "finished");
});

Deno.test("http: only files of checkpoints that the run wrote are served", async () => {
  await using site = await openSite();
  const info = { step: 3, bytes: 1, valLoss: null };
  site.shell.checkpoints.push({ ...info, name: "step-000000003", files: ["config.json"] });
  await write(join(site.shell.options.outDir, "checkpoints/step-000000003/config.json"), "{}");
  const ask = (path: string) => site.ask(`/api/checkpoints/${path}`, { token: ADMIN });
  const found = await ask("step-000000003/config.json");
  assert.equal(found.headers.get("content-disposition"), 'attachment; filename="config.json"');
  assert.equal(await found.text(), "{}");
  for (
    const path of [
      "step-000000003/other",
      "other/config.json",
      "..%2f..%2f/secret.txt",
      "step-000000003/..%2F..%2F..%2Fsecret.txt",
    ]
  ) {
    await assertProblem(await ask(path), 404, "bad-checkpoint");
  }
});

Deno.test("http: pages carry a policy that allows this server alone", async () => {
  await using site = await openSite();
  for (const path of ["/", "/admin", "/index.html"]) {
    const response = await site.ask(path);
    assert.equal(response.status, 200);
    const policy = response.headers.get("content-security-policy") ?? "";
    assert.match(policy, /^default-src 'none'; script-src 'self'; /);
    assert.ok(!/unsafe|https?:|\*/.test(policy), policy);
    assert.match(policy, /frame-ancestors 'none'/);
    assert.equal(response.headers.get("x-content-type-options"), "nosniff");
    assert.equal(response.headers.get("referrer-policy"), "no-referrer");
    assert.equal(response.headers.get("cache-control"), "no-cache");
    await response.text();
  }
  const asset = await site.ask("/assets/app-1a2b.js");
  assert.match(asset.headers.get("cache-control") ?? "", /immutable/);
  assert.match(asset.headers.get("content-type") ?? "", /^text\/javascript/);
  const script = asset.headers.get("content-security-policy") ?? "";
  assert.match(script, /^default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; /);
  assert.ok(!/unsafe|https?:|\*/.test(script.replace("'wasm-unsafe-eval'", "")), script);
  await asset.text();
});

Deno.test("http: nothing outside the pages' folder is served, however it is written", async () => {
  await using site = await openSite();
  const paths = [
    ...[
      "/../secret.txt",
      "/%2e%2e/secret.txt",
      "/..%2fsecret.txt",
      "/%2e%2e%2fsecret.txt",
      "/assets/../../secret.txt",
    ],
    ...[
      "/../dist-backup/secret.txt",
      "/..%5csecret.txt",
      "/..\\secret.txt",
      "//secret.txt",
      "/%00/../secret.txt",
    ],
    ...["/.../secret.txt", "/events.sqlite", "/../events.sqlite", "/api/nothing", "/assets"],
  ];
  for (const path of paths) await assertProblem(await site.ask(path), 404, "usage");
  await assertProblem(await site.ask("/nowhere", { method: "POST" }), 404, "usage");
});

Deno.test("http: metrics are Prometheus text with help, type and value of each", async () => {
  await using site = await openSite();
  const response = await site.ask("/metrics", { token: ADMIN });
  const families = (await response.text()).trimEnd().split(/^(?=# HELP )/m);
  assert.ok(families.length >= 10);
  const names = families.map((family) => {
    const [help = "", type = "", ...samples] = family.trimEnd().split("\n");
    const name = /^# HELP (shoal_[a-z_]+) \S.*\.$/.exec(help)?.[1];
    assert.ok(name !== undefined, help);
    const kind = new RegExp(`^# TYPE ${name} (counter|gauge|summary)$`).exec(type)?.[1];
    assert.equal(kind === "counter", name.endsWith("_total"), type);
    const suffix = kind === "summary" ? "(_sum|_count)?" : "";
    const sample = new RegExp(
      `^${name}${suffix}(\\{[a-z]+="[^"\\n]*"\\})? (NaN|-?\\d+(\\.\\d+)?(e[+-]?\\d+)?)$`,
    );
    for (const line of samples) assert.match(line, sample);
    return name;
  });
  assert.equal(new Set(names).size, names.length, "a family is given twice");
});
