// The command line in real processes, with the permissions that the documentation promises: leaving, the demo's JSON lines,
// and mistakes that are refused before anything starts. CPU engine and a tiny model, so that all of it is quick.
import assert from "node:assert/strict";
import { join } from "node:path";
import { cpuPeer, flagsOf, inFolder, serving, shoal, TINY } from "../support/cli_support.ts";

Deno.test("cli: Ctrl-C lets a peer leave cleanly, and the run goes on with the other", () =>
  inFolder(async (folder) => {
    const endless = flagsOf({ ...TINY, max_iters: 100_000, checkpoint_interval: 100_000, min_peers: 2 });
    const { cli, join: link } = await serving("coordinator", [...endless, "--out_dir", join(folder, "run")]);
    await using coordinator = cli;
    await using leaving = cpuPeer(link);
    await using staying = cpuPeer(link);
    await coordinator.line("step 2 with two peers", (line) => line.event === "step" && line.peers === 2);
    leaving.interrupt();
    assert.equal(await leaving.ended(), 0, `${leaving.out.join("\n")}\n${leaving.err.join("\n")}`);
    assert.deepEqual(leaving.json().at(-1)!.kind, "left");
    const left = await coordinator.line(
      "the farewell",
      (line) => line.event === "peer" && line.what === "left",
    );
    const at = coordinator.json().findIndex((line) => line.event === "peer" && line.what === "left");
    await coordinator.line("a step with one peer", (line) => line.event === "step" && line.peers === 1);
    assert.ok(at > 0 && left.id !== undefined);
    assert.equal(coordinator.json().filter((line) => line.event === "rollback").length, 0, "a step was lost");
    coordinator.interrupt();
    assert.equal(await coordinator.ended(), 0);
    // The coordinator says goodbye, so the other peer is done, too.
    assert.equal(await staying.ended(), 0, `${staying.out.join("\n")}\n${staying.err.join("\n")}`);
  }));

Deno.test("cli: the demo prints JSON lines only, and the last one is done", () =>
  inFolder(async (folder) => {
    await using demo = shoal("demo", [
      ...["--json", "--tabs=0", "--peers-deno=2", "--max_iters=3", "--out_dir", join(folder, "run")],
      ...flagsOf({ ...TINY, sample_chars: 8 }),
    ]);
    assert.equal(await demo.ended(), 0, demo.err.join("\n"));
    const lines = demo.json();
    assert.equal(lines[0]!.event, "listening");
    const last = lines.at(-1)!;
    assert.deepEqual([last.event, last.step], ["done", 3]);
    assert.equal([...String(last.sample)].length, 8);
    assert.deepEqual(lines.filter((line) => line.event === "step").map((line) => line.step), [1, 2, 3]);
    assert.ok(demo.err.every((line) => !line.startsWith("{")), "data on stderr");
  }));

interface Mistake {
  args: [verb: string, ...args: string[]];
  code: number;
  says: RegExp;
}

const MISTAKES: Mistake[] = [
  { args: ["trian"], code: 2, says: /unknown verb "trian"/ },
  { args: ["coordinator", "--prot=1"], code: 2, says: /unknown flag "--prot" \(did you mean "--port"/ },
  { args: ["coordinator", "--n_layers=4"], code: 2, says: /did you mean "--n_layer"/ },
  { args: ["coordinator", "--n_layer=two"], code: 2, says: /n_layer is "two"; use an integer from/ },
  {
    args: ["coordinator", "--n_embd=30", "--n_head=4"],
    code: 2,
    says: /n_embd 30 is not a multiple of n_head 4/,
  },
  { args: ["coordinator", "--n_layer=2", "--n_stage=3"], code: 2, says: /n_stage 3 exceeds n_layer 2/ },
  {
    args: ["coordinator", "--block_size=8192", "--dataset=LICENSE"],
    code: 1,
    says: /corpus of \d+ tokens is too short/,
  },
  {
    args: ["coordinator", "--dataset=moby-dock"],
    code: 1,
    says: /"moby-dock" cannot be read.*known data set \(moby-dick\)/,
  },
  {
    args: ["coordinator", "--config", "package.json"],
    code: 2,
    says: /unknown key "name"; the nearest known key is/,
  },
  {
    args: ["coordinator", "--port=70000"],
    code: 2,
    says: /--port is "70000"; use an integer from 0 to 65535/,
  },
  { args: ["resume"], code: 2, says: /folder to resume from is missing/ },
  { args: ["resume", "docs"], code: 1, says: /holds no checkpoint/ },
  { args: ["peer"], code: 2, says: /--join is missing/ },
  { args: ["peer", "--join", "http://127.0.0.1:1/"], code: 2, says: /not a join link/ },
  { args: ["generate", "--checkpoint", "docs"], code: 2, says: /--prompt is missing/ },
  { args: ["demo", "--tabs=many"], code: 2, says: /--tabs is "many"/ },
];

Deno.test("cli: mistakes end with their code, one sentence with the remedy, and nothing started", () =>
  inFolder(async (folder) => {
    for (const { args: [verb, ...rest], code, says } of MISTAKES) {
      const writes = verb === "coordinator" || verb === "demo";
      await using mistaken = shoal(verb, [...rest, ...(writes ? ["--out_dir", join(folder, "run")] : [])]);
      const label = `shoal ${[verb, ...rest].join(" ")}`;
      assert.equal(await mistaken.ended(), code, `${label}\n${mistaken.err.join("\n")}`);
      assert.match(mistaken.err.join("\n"), says, label);
      assert.ok(mistaken.err.every((line) => !/^\s+at /.test(line)), `${label} showed a stack`);
      assert.deepEqual(mistaken.out, [], `${label} printed data`);
    }
    assert.deepEqual([...Deno.readDirSync(folder)], [], "a mistake left something behind");
  }));
