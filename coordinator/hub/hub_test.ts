// A coordinator of several runs over real sockets: runs made, trained by a real peer each under its own address, put away with a
// checkpoint, brought back, cloned with weights, deleted; what goes wrong in one leaves the others alone. The page has its own tests.
import assert from "node:assert/strict";
import { join } from "node:path";
import { decodeState } from "../../peer/model/state_file.ts";
import type { HubRun } from "../../peer/wire/hub.ts";
import { type HubSite, lend, make, openHub, refused, SMALL, withHub } from "../../test/support/hub_site.ts";
import { newestCheckpoint, readCheckpoint, readManifest } from "../store/checkpoints.ts";

/** Long enough for a machine that does ten other things. */
const PATIENCE_MS = 60_000;

async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + PATIENCE_MS; Date.now() < end;) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail(`${what} did not come`);
}

function step(site: HubSite, id: string): number {
  return site.server.hub.run(id)?.shell.core.state.committed ?? -1;
}

Deno.test("hub: two runs of one coordinator train side by side, each with peers, links and files of its own", async () => {
  await withHub(async (site) => {
    const [one, two] = [await make(site, "Class one"), await make(site, "Class two", { listed: true })];
    assert.deepEqual([one, two], ["class-one", "class-two"]);
    const rows = await site.rows();
    const linkOf = (id: string) => rows.find((row) => row.id === id)!.joinLink!;
    const running = [lend(linkOf(one)), lend(linkOf(two))].map((peer) => ({ peer, done: peer.run() }));
    await until("a few steps of both", () => step(site, one) > 3 && step(site, two) > 3);
    const trained = await site.rows();
    assert.deepEqual(trained.map(({ state, peers }) => [state, peers]), [["training", 1], ["training", 1]]);
    await refused(
      await fetch(`${site.origin}/r/${one}/api/status`, {
        headers: { authorization: `Bearer ${new URL(linkOf(two)).hash.slice(1)}` },
      }),
      401,
      /bad-token/,
    );
    assert.equal((await site.ask(`/api/hub/runs/${one}/archive`, {})).status, 200);
    await running[0]!.done;
    await until(
      "the end of the first",
      async () => (await site.rows()).some((row) => row.place === "archived"),
    );
    const before = step(site, two);
    await until("more of the second", () => step(site, two) > before + 2);
    const kept = await newestCheckpoint(join(site.folder, "runs", one));
    const { manifest } = await readCheckpoint(kept!);
    assert.equal(manifest.step, (await site.rows()).find((row) => row.id === one)!.step);
    running[1]!.peer.leaveNow();
    await running[1]!.done;
  });
});

Deno.test("hub: an archived run comes back where it was, and only an archived one is deleted, by its name", async () => {
  await withHub(async (site) => {
    const id = await make(site, "Evening class");
    const link = (await site.rows())[0]!.joinLink!;
    const first = lend(link).run();
    await until("a few steps", () => step(site, id) > 2);
    await refused(
      await site.ask(`/api/hub/runs/${id}`, { name: "Evening class" }, { method: "DELETE" }),
      400,
      /not archived/,
    );
    await site.ask(`/api/hub/runs/${id}/archive`, {});
    await first;
    await until("the archive", async () => (await site.rows())[0]!.busy === "");
    const { step: kept, place } = (await site.rows())[0]!;
    assert.equal(place, "archived");
    await refused(await fetch(link.replace(/#.*/, "api/status")), 404, /no run "evening-class" is open/);
    assert.equal((await site.ask(`/api/hub/runs/${id}/open`, {})).status, 200);
    assert.equal((await site.rows())[0]!.joinLink, link, "its link has changed");
    const peer = lend(link);
    const again = peer.run();
    await until("steps beyond", () => step(site, id) > kept);
    peer.leaveNow();
    await again;
    await site.ask(`/api/hub/runs/${id}/archive`, {});
    const remove = (name: string) => site.ask(`/api/hub/runs/${id}`, { name }, { method: "DELETE" });
    await refused(await remove("evening"), 400, /give the run's name, "Evening class"/);
    assert.equal((await remove("Evening class")).status, 200);
    assert.deepEqual(await site.rows(), []);
    assert.deepEqual([...Deno.readDirSync(join(site.folder, "runs"))].filter((it) => it.isDirectory), []);
  });
});

Deno.test("hub: a clone begins at step 0 with the weights of another run, or is refused if it has another shape", async () => {
  await withHub(async (site) => {
    const id = await make(site, "First");
    const peer = lend((await site.rows())[0]!.joinLink!);
    const running = peer.run();
    await until("a few steps", () => step(site, id) > 2);
    await refused(
      await site.ask("/api/hub/runs", { name: "x", config: SMALL, weightsOf: id }),
      409,
      /no checkpoint yet/,
    );
    await site.ask(`/api/hub/runs/${id}/archive`, {});
    await running;
    await until("the archive", async () => (await site.rows())[0]!.busy === "");
    const config = await (await site.ask(`/api/hub/runs/${id}/config`)).json();
    assert.equal(config.n_embd, SMALL.n_embd);
    const wider = { ...config, n_embd: 16 };
    await refused(
      await site.ask("/api/hub/runs", { name: "wider", config: wider, weightsOf: id }),
      400,
      /another shape/,
    );
    const clone = await make(site, "First", { config: { ...config, learning_rate: 0.01 }, weightsOf: id });
    assert.equal(clone, "first-2");
    const states = await Promise.all([id, clone].map(async (of) => {
      const { manifest, files } = await readCheckpoint(
        (await newestCheckpoint(join(site.folder, "runs", of)))!,
      );
      const decoded = decodeState(manifest.spec, manifest.stages[0]!, files[0]!.bytes);
      assert.ok(decoded.ok);
      return decoded.value;
    }));
    assert.deepEqual(states[1]!.params, states[0]!.params);
    assert.ok(states[0]!.step > 2 && states[0]!.m.some((value) => value !== 0));
    assert.equal(states[1]!.step, 0);
    assert.ok(states[1]!.m.every((value) => value === 0));
    assert.equal((await site.rows()).length, 2, "a refused wish has left something behind");
  });
});

Deno.test("hub: adapters begin beside another run's weights, and are refused without any", async () => {
  await withHub(async (site) => {
    const id = await make(site, "First");
    const running = lend((await site.rows())[0]!.joinLink!).run();
    await until("a step", () => step(site, id) > 0);
    await site.ask(`/api/hub/runs/${id}/archive`, {});
    await running;
    await until("the archive", async () => (await site.rows())[0]!.busy === "");
    const config = { ...SMALL, lora_rank: 2 };
    const alone = await site.ask("/api/hub/runs", { name: "Adapted", config });
    await refused(alone, 400, /lora_rank trains adapters of a model that is there already/);
    assert.equal((await site.rows()).length, 1);
    const made = await make(site, "Adapted", { config, weightsOf: id });
    const { spec } = await readManifest((await newestCheckpoint(join(site.folder, "runs", made)))!);
    assert.match(spec.lora!.base!, /^[0-9a-f]{64}$/);
    const told = await (await site.ask(`/api/hub/runs/${made}/config`)).json();
    assert.deepEqual([told.lora_rank, told.lora_base], [2, spec.lora!.base]);
  });
});

Deno.test("hub: the runs that were open are open again after a restart, with their links; what is damaged is told", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-hub-" });
  try {
    let before: HubRun[];
    {
      await using site = await openHub(folder);
      for (const name of ["a", "b", "c", "d"]) await make(site, name);
      await site.ask("/api/hub/runs/c/archive", {});
      before = await site.rows();
    }
    const log = join(folder, "runs", "d", "run.log");
    const bytes = await Deno.readFile(log);
    bytes[20]! ^= 1;
    await Deno.writeFile(log, bytes);
    await using site = await openHub(folder);
    const after = await site.rows();
    const places = Object.fromEntries(after.map(({ id, place }) => [id, place]));
    assert.deepEqual(places, { a: "open", b: "open", c: "archived", d: "broken" });
    const path = (rows: HubRun[], id: string) => {
      const { pathname, hash } = new URL(rows.find((row) => row.id === id)!.joinLink!);
      return pathname + hash;
    };
    for (const id of ["a", "b"]) assert.equal(path(after, id), path(before, id));
    assert.match(after.find((row) => row.id === "d")!.reason, /run\.log/);
    await assert.rejects(openHub(folder), /another coordinator is running/);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("hub: a mistake in one run closes that one, and the others answer", async () => {
  await withHub(async (site) => {
    const [bad, good] = [await make(site, "bad"), await make(site, "good")];
    const { core } = site.server.hub.run(bad)!.shell;
    core.step = () => {
      throw new Error("a state that cannot be");
    };
    await until("the failure", async () => (await site.rows()).some((row) => row.place === "broken"));
    const rows = await site.rows();
    assert.match(
      rows.find((row) => row.id === bad)!.reason,
      /mistake of the program: a state that cannot be/,
    );
    assert.equal(rows.find((row) => row.id === good)!.place, "open");
    assert.ok(site.notes.some((note) => note.startsWith("bad: it failed")));
    await site.ask(`/api/hub/runs/${bad}/open`, {});
    assert.equal((await site.rows()).find((row) => row.id === bad)!.place, "open");
  });
});
