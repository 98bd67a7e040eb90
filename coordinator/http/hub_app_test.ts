// Who answers where at a coordinator of several runs, and who may do what: the public list, the organizer's orders, errors with
// codes, and the root, which is the page of a run that is alone.
import assert from "node:assert/strict";
import { type HubSite, make, openHub, refused, SMALL, withHub } from "../../test/support/hub_site.ts";

async function titleAt(site: HubSite, path: string): Promise<string> {
  return /<title>(.*)<\/title>/.exec(await (await fetch(site.origin + path)).text())?.[1] ?? "none";
}

Deno.test("hub: the root is the page of a run that is alone, and the list once there are two", async () => {
  await withHub(async (site) => {
    assert.equal(await titleAt(site, "/"), "runs");
    await make(site, "one");
    assert.deepEqual([await titleAt(site, "/"), await titleAt(site, "/runs")], ["join", "runs"]);
    const { pathname, hash } = new URL((await site.rows())[0]!.joinLink!);
    assert.equal(pathname, "/r/one/");
    const headers = { authorization: `Bearer ${hash.slice(1)}` };
    for (const path of ["/api/invite", "/r/one/api/invite"]) {
      const response = await fetch(site.origin + path, { headers });
      assert.equal((await response.json()).runName, "one", path);
    }
    await make(site, "two");
    assert.equal(await titleAt(site, "/"), "runs");
    const response = await fetch(`${site.origin}/api/invite`, { headers });
    assert.equal(response.status, 404);
    await response.body?.cancel();
  });
});

Deno.test("hub: a run's place without its slash leads to the page, and no other name leads anywhere", async () => {
  await withHub(async (site) => {
    await make(site, "one");
    const bare = await fetch(`${site.origin}/r/one?engine=cpu`, { redirect: "manual" });
    assert.deepEqual([bare.status, bare.headers.get("location")], [308, "/r/one/?engine=cpu"]);
    await bare.body?.cancel();
    assert.equal(await titleAt(site, "/r/one/"), "join");
    for (const path of ["/r/two/", "/r/../one/", "/r/one%2f..%2ftwo/", "/r/", "/r/constructor/"]) {
      const response = await fetch(site.origin + path);
      assert.equal(response.status, 404, path);
      await response.body?.cancel();
    }
  });
});

Deno.test("hub: without the organizer's token only listed runs are seen, and nothing is done", async () => {
  await withHub(async (site) => {
    await make(site, "hidden");
    await make(site, "shown", { listed: true });
    const list = await (await site.ask("/api/hub/runs", undefined, { token: null })).json();
    assert.equal(list.admin, false);
    assert.deepEqual(list.runs.map(({ id, adminLink }: Record<string, unknown>) => [id, adminLink]), [[
      "shown",
      null,
    ]]);
    await refused(await site.ask("/api/hub/runs", undefined, { token: "wrong" }), 401, /bad-token/);
    const orders: [string, string, unknown][] = [
      ["POST", "/api/hub/runs", { name: "x", config: SMALL }],
      ["GET", "/api/hub/form", undefined],
      ["POST", "/api/hub/estimate", { config: {}, offerBytes: 1e9, gflops: 1 }],
      ["GET", "/api/hub/runs/shown/config", undefined],
      ["POST", "/api/hub/runs/shown/archive", {}],
      ["POST", "/api/hub/runs/shown/open", {}],
      ["POST", "/api/hub/runs/shown/list", { listed: false }],
      ["DELETE", "/api/hub/runs/shown", { name: "shown" }],
    ];
    for (const [method, path, body] of orders) {
      await refused(await site.ask(path, body, { method, token: null }), 401, /bad-token/);
    }
    assert.equal((await site.rows()).length, 2);
    await site.ask("/api/hub/runs/hidden/list", { listed: true });
    const after = await (await site.ask("/api/hub/runs", undefined, { token: null })).json();
    assert.equal(after.runs.length, 2);
  });
});

Deno.test("hub: whether contributors may write text is a wish for each run, kept and shown", async () => {
  await withHub(async (site) => {
    await make(site, "open", { publicText: true });
    await make(site, "own");
    const answers = await Promise.all((await site.rows()).map(async ({ id, joinLink, publicText }) => {
      const token = new URL(joinLink!).hash.slice(1);
      const invite = await (await site.ask(`/r/${id}/api/invite`, undefined, { token })).json();
      const models = await site.ask(`/r/${id}/v1/models`, undefined, { token });
      await models.body?.cancel();
      return [id, publicText, invite.text ?? false, models.status];
    }));
    assert.deepEqual(answers.sort(), [["open", true, true, 200], ["own", false, false, 401]]);
    await site.ask("/api/hub/runs/open/archive", {});
    await site.ask("/api/hub/runs/open/open", {});
    assert.equal((await site.rows()).find(({ id }) => id === "open")?.publicText, true);
    const { adminLink } = (await site.rows()).find(({ id }) => id === "open")!;
    const token = new URL(adminLink!).hash.slice(1);
    assert.equal((await site.ask("/r/open/api/public_text", { open: false }, { token })).status, 200);
    const shown = async () => (await site.rows()).find(({ id }) => id === "open")?.publicText;
    assert.equal(await shown(), false);
    await site.ask("/api/hub/runs/open/archive", {});
    assert.equal(await shown(), false, "a closed run is shown as it is when it is opened");
    await site.ask("/api/hub/runs/open/open", {});
    assert.equal(await shown(), false);
    await refused(
      await site.ask("/api/hub/runs", { name: "x", config: SMALL, publicText: "yes" }),
      400,
      /publicText/,
    );
  });
});

Deno.test("hub: what the coordinator was started with counts in a new run, unless its maker says otherwise", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-hub-" });
  try {
    const iceServers = [{ urls: ["turn:train.example.org:3478"], username: "class", credential: "secret" }];
    await using site = await openHub(folder, { defaults: { iceServers, min_peers: 3, max_iters: 77 } });
    const form = await (await site.ask("/api/hub/form")).json();
    assert.deepEqual([form.defaults.min_peers, form.defaults.max_iters], [3, 77]);
    const id = await make(site, "a", { config: { n_layer: 2, max_iters: 9 } });
    const config = await (await site.ask(`/api/hub/runs/${id}/config`)).json();
    assert.deepEqual([config.iceServers, config.min_peers, config.max_iters], [iceServers, 3, 9]);
    const ask = { config: { n_layer: 2, n_stage: 3 }, offerBytes: 2e9, gflops: 100 };
    const { errors } = await (await site.ask("/api/hub/estimate", ask)).json();
    assert.deepEqual(errors.map(({ field }: { field: string }) => field), ["n_stage"]);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("hub: nonsense is refused with a code, and leaves no run behind", async () => {
  await withHub(async (site) => {
    const wrong: [unknown, RegExp][] = [
      [{ config: {} }, /usage: name/],
      [{ name: " ", config: {} }, /usage: name: a run needs a name/],
      [{ name: "x".repeat(81), config: {} }, /at most 80 characters/],
      [{ name: "a\u0000b", config: {} }, /printable/],
      [{ name: "x", config: [] }, /usage: config/],
      [{ name: "x", config: { n_layer: 0 } }, /bad-config: n_layer: 0 cannot be used/],
      [{ name: "x", config: { dataset: "/etc/passwd" } }, /bad-config: dataset: there is no such text/],
      [{ name: "x", config: {}, weightsOf: "../other" }, /usage: there is no run/],
      [{ name: "x", config: {}, more: 1 }, /usage/],
      [{ name: "x", config: { iceServers: "x".repeat(40_000) } }, /usage/],
    ];
    for (const [wish, says] of wrong) await refused(await site.ask("/api/hub/runs", wish), 400, says);
    for (
      const body of [{ config: {} }, { config: {}, offerBytes: 1, gflops: 1 }, {
        config: {},
        offerBytes: 1e9,
        gflops: 0,
      }]
    ) {
      await refused(await site.ask("/api/hub/estimate", body), 400, /usage/);
    }
    for (const path of ["none/archive", "none/open", "none/config"]) {
      const get = path.endsWith("config");
      await refused(await site.ask(`/api/hub/runs/${path}`, get ? undefined : {}), 400, /there is no run/);
    }
    assert.deepEqual(await site.rows(), []);
    const names = ["Ünïcode & more", "..", "runs"];
    for (const name of names) await make(site, name);
    assert.deepEqual((await site.rows()).map(({ name }) => name).sort(), names.toSorted());
  });
});

Deno.test("hub: an estimate answers with figures, or with what is wrong at which field", async () => {
  await withHub(async (site) => {
    const ask = async (config: unknown) =>
      await (await site.ask("/api/hub/estimate", { config, offerBytes: 2e9, gflops: 100 })).json();
    const good = await ask({ n_layer: 3 });
    assert.deepEqual(good.errors, []);
    assert.ok(good.estimate.params > 0 && good.estimate.peersNeeded === 1 && good.estimate.totalSeconds > 0);
    const bad = await ask({ n_embd: 63, n_layer: 3 });
    assert.equal(bad.estimate, null);
    assert.deepEqual(bad.errors.map(({ field }: { field: string }) => field), ["n_embd"]);
    const { datasets, defaults, choices } = await (await site.ask("/api/hub/form")).json();
    assert.equal((await (await site.ask("/api/hub/form")).json()).measured, null);
    assert.ok(datasets.length >= 1 && defaults.n_layer > 0 && choices.schedule.includes("dynamic"));
  });
});
