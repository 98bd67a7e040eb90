// What `shoal run` starts and what `--runs_dir` refuses, out of the flags alone; test/e2e/runs_test.ts runs both.
import assert from "node:assert/strict";
import { coordinateMany } from "./coordinate_many.ts";
import { permissionsFor } from "./permissions.mjs";
import { planRun } from "./run.ts";

function options(flags: Record<string, string>, config: Record<string, unknown> = {}) {
  return { flags: { out_dir: "/tmp/nowhere-yet", ...flags }, config, positionals: [] };
}

Deno.test("run: waits for its own peers, leaves the stages to the planner, and flags win", async () => {
  const plain = await planRun(options({}));
  assert.deepEqual([plain.peers, plain.run.config.min_peers, plain.run.config.n_stage], [1, 1, 0]);
  const three = await planRun(options({ peers: "3" }, { n_stage: 2 }));
  assert.deepEqual([three.peers, three.run.config.min_peers, three.run.config.n_stage], [3, 3, 2]);
  assert.equal((await planRun(options({ peers: "3" }, { min_peers: 5 }))).run.config.min_peers, 5);
  await assert.rejects(planRun(options({ peers: "0" })), /--peers is "0"; use an integer from 1 to 32/);
});

Deno.test("runs_dir: what is of one run is refused, by name, before anything is opened", async () => {
  const many = (flags: Record<string, string>, config: Record<string, unknown> = {}) =>
    coordinateMany({ flags: { runs_dir: "/tmp/nowhere-yet", ...flags }, config, positionals: [] });
  await assert.rejects(many({ name: "x" }), /--name is of one run; with --runs_dir/);
  await assert.rejects(many({ out_dir: "x" }), /--out_dir is of one run/);
  await assert.rejects(many({}, { n_layer: 3 }), /--n_layer is of one run/);
  const path = await Deno.makeTempFile({ suffix: ".json" });
  try {
    await Deno.writeTextFile(path, '{"dataset": "moby-dick"}');
    await assert.rejects(many({ config: path }), /dataset in .* is of one run/);
    await Deno.writeTextFile(path, '{"n_layers": 3}');
    await assert.rejects(many({ config: path }), /n_layers/);
  } finally {
    await Deno.remove(path);
  }
});

Deno.test("runs_dir: the process writes in that folder alone", () => {
  const around = { root: "/r", cwd: "/w", tmp: "/tmp", deno: "/r/deno", chromium: null };
  const flags = permissionsFor("coordinator", ["--runs_dir", "all"], around);
  assert.ok(flags.includes("--allow-write=/w/all"));
  assert.ok(flags.includes("--allow-read=/r,/w/all"));
});
