// State files over HTTP: taken only while they are asked for, from a holder of the stage, in exact shape, once; given to any
// peer of the run and to nobody else.
import assert from "node:assert/strict";
import { stateHash } from "../../peer/exact/hash.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import { admit, assertProblem, JOIN, openSite, type Site, SPEC } from "../../test/support/site.ts";
import type { Shell } from "../shell.ts";

/** A run whose step 1 is committed and whose state is being asked for: stage 0 of a, stage 1 of b. */
function askForState(site: Site): void {
  for (const id of ["a", "b"]) admit(site, id);
  const { state } = site.shell.core;
  const say = (peer: string, message: Parameters<Shell["feed"]>[0] & { type: "message" }) =>
    site.shell.feed({ ...message, peer });
  for (const peer of ["a", "b"]) {
    say(peer, { type: "message", peer, message: { type: "ready", gen: state.gen } });
  }
  const sums = { gradNormSq: 1, saturated: 0, nonFinite: 0 };
  const { cut, gen } = state.view!;
  for (const [stage, peer] of ["a", "b"].entries()) {
    const total = { type: "logged" as const, cut, gen, step: 0, stage, hash: "t", ...sums };
    say(peer, { type: "message", peer, message: total });
  }
  assert.equal(state.pending?.step, 1);
}

interface Sending {
  peer: string;
  step?: number;
  stage?: number;
  cut?: number;
  bytes?: Uint8Array<ArrayBuffer>;
  hash?: string;
  headers?: Record<string, string>;
}

function stateOf(site: Site, stage: number, step = 1) {
  const state = { ...initialState(SPEC, site.shell.core.state.view!.stages[stage]!, 1), step };
  return { bytes: encodeState(state), hash: stateHash(state) };
}

async function send(site: Site, options: Sending): Promise<Response> {
  const { peer, step = 1, stage = 0, cut = site.shell.core.state.view!.cut } = options;
  const good = stateOf(site, Math.min(stage, 1));
  const { bytes = good.bytes, hash = good.hash } = options;
  const headers = {
    ...{ "x-shoal-cut": String(cut), "x-shoal-hash": hash, "content-length": String(bytes.length) },
    ...options.headers,
  };
  return await site.ask(`/api/state/${step}/${stage}`, {
    method: "PUT",
    token: JOIN,
    peer,
    body: bytes,
    headers,
  });
}

Deno.test("http: a state of the same step and stage, but of another cut of the layers, stands beside the first", async () => {
  await using site = await openSite();
  const former = Uint8Array.of(1, 2, 3);
  site.shell.putFile(1, { stage: 0, hash: "former" }, former);
  askForState(site);
  assert.equal((await send(site, { peer: "a" })).status, 200);
  const given = await site.ask("/api/state/1/0/former", { token: JOIN, peer: "b" });
  assert.deepEqual(new Uint8Array(await given.arrayBuffer()), former);
});

Deno.test("http: a state is taken from its holder once, and given to every peer", async () => {
  await using site = await openSite();
  askForState(site);
  const { bytes, hash } = stateOf(site, 0);
  const response = await send(site, { peer: "a" });
  assert.deepEqual([response.status, await response.json()], [200, { stored: bytes.length }]);
  await assertProblem(await send(site, { peer: "a" }), 409, "bad-state");
  const given = await site.ask(`/api/state/1/0/${hash}`, { token: JOIN, peer: "b" });
  assert.deepEqual(new Uint8Array(await given.arrayBuffer()), bytes);
  for (const other of [`1/1/${hash}`, `2/0/${hash}`, "1/0/another"]) {
    await assertProblem(await site.ask(`/api/state/${other}`, { token: JOIN, peer: "b" }), 404, "bad-state");
  }
  assert.equal((await send(site, { peer: "b", stage: 1 })).status, 200);
  assert.equal(site.shell.core.state.snapshots.at(-1)!.step, 1);
});

Deno.test("http: a state that is not asked for, or not of its holder, is refused", async () => {
  await using site = await openSite();
  askForState(site);
  const { cut } = site.shell.core.state.view!;
  const refused: [string, Sending][] = [
    ["of a peer that does not hold the stage", { peer: "b" }],
    ["of another step", { peer: "a", step: 2 }],
    ["of an earlier cut", { peer: "a", cut: cut - 1 }],
    ["of a later cut", { peer: "a", cut: cut + 1 }],
    ["of a stage that is not", { peer: "a", stage: 7 }],
    ["of no number", { peer: "a", step: NaN }],
    ["without a cut", { peer: "a", headers: { "x-shoal-cut": "" } }],
  ];
  for (const [what, options] of refused) {
    await assertProblem(await send(site, options), 409, "bad-state").catch((error) => {
      throw new Error(what, { cause: error });
    });
  }
  await assertProblem(await send(site, { peer: "stranger" }), 401, "bad-token");
  const forged = { "x-shoal-peer": "b", "x-shoal-ticket": "ticket of a" };
  await assertProblem(
    await site.ask("/api/state/1/0/some-hash", { token: JOIN, headers: forged }),
    401,
    "bad-token",
  );
  site.sockets.tickets.delete("a");
  await assertProblem(await send(site, { peer: "a" }), 401, "bad-token");
  assert.deepEqual(site.shell.core.state.pending?.files, []);
});

Deno.test("http: a state of wrong size, shape, step or hash is refused", async () => {
  await using site = await openSite();
  askForState(site);
  const good = stateOf(site, 0);
  const tooLong = { peer: "a", headers: { "content-length": String(100 << 20) } };
  await assertProblem(await send(site, tooLong), 413, "bad-state");
  await assertProblem(
    await send(site, { peer: "a", headers: { "content-length": "many" } }),
    413,
    "bad-state",
  );
  const other = stateOf(site, 1);
  const wrong: Sending[] = [
    { peer: "a", bytes: other.bytes, hash: other.hash },
    { peer: "a", bytes: good.bytes.slice(0, -4) },
    { peer: "a", bytes: new Uint8Array(64) },
    { peer: "a", bytes: new Uint8Array(0) },
    { peer: "a", ...stateOf(site, 0, 2) },
    { peer: "a", hash: other.hash },
    { peer: "a", hash: "" },
  ];
  for (const options of wrong) await assertProblem(await send(site, options), 422, "bad-state");
  assert.deepEqual(site.shell.core.state.pending?.files, []);
  assert.equal((await send(site, { peer: "a" })).status, 200);
});

Deno.test("http: a state that a learner waits for is taken at its very step from any holder, once, and given to the learner", async () => {
  await using site = await openSite();
  askForState(site);
  const { state } = site.shell.core;
  for (const stage of [0, 1]) assert.equal((await send(site, { peer: "ab"[stage]!, stage })).status, 200);
  assert.equal(state.pending, null);
  await assertProblem(await send(site, { peer: "a" }), 409, "bad-state");
  state.view!.stages[0]!.replicas.push({ peer: "b", microBatches: [], learning: true });
  state.transfers.push({ stage: 0, peer: "b", from: "a", step: 1, file: null, at: 0, attempts: 1 });
  await assertProblem(await send(site, { peer: "a", step: 2 }), 409, "bad-state");
  await assertProblem(await send(site, { peer: "b" }), 409, "bad-state");
  assert.equal((await send(site, { peer: "a" })).status, 200);
  assert.equal(state.transfers[0]!.file?.hash, stateOf(site, 0).hash);
  await assertProblem(await send(site, { peer: "a" }), 409, "bad-state");
  const given = await site.ask(`/api/state/1/0/${stateOf(site, 0).hash}`, { token: JOIN, peer: "b" });
  assert.deepEqual(new Uint8Array(await given.arrayBuffer()), stateOf(site, 0).bytes);
});
