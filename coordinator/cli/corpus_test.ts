// `shoal corpus` on a folder and at a running coordinator of several runs: the same text gets the same name in both, what is wrong with a
// file is told with its line, and what a run uses stays.
import assert from "node:assert/strict";
import { join } from "node:path";
import { make, SMALL, withHub } from "../../test/support/hub_site.ts";
import { loadCorpus } from "../store/corpus.ts";
import { RunLog } from "../store/run_log.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { CorpusInfo } from "../../peer/wire/corpora.ts";
import { runCorpus } from "./corpus.ts";
import { parseVerb, verbNamed } from "./options.ts";
import { permissionsFor } from "./permissions.mjs";

async function shoal(...args: string[]): Promise<{ lines: string[]; notes: string[]; shown: number[] }> {
  const said = { lines: [] as string[], notes: [] as string[], shown: [] as number[] };
  await runCorpus(parseVerb(verbNamed("corpus"), args), {
    data: (text) => said.lines.push(text),
    note: (text) => said.notes.push(text),
    progress: ({ bytes }) => said.shown.push(bytes),
  });
  return said;
}

function refusal(code: string, pattern: RegExp) {
  return (error: unknown) => {
    assert.ok(error instanceof ShoalError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, pattern);
    return true;
  };
}

async function inFolder(test: (folder: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-texts-" });
  try {
    await test(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

const LINES = Array.from({ length: 200 }, (_, i) => JSON.stringify({ body: `Hello world ${i}` })).join("\n");

Deno.test("corpus: a text is prepared in a runs folder, listed, used by a run, and removed", () =>
  inFolder(async (folder) => {
    const file = join(folder, "my texts.jsonl"), runs = `--runs_dir=${join(folder, "runs")}`;
    await Deno.writeTextFile(file, LINES);
    assert.deepEqual((await shoal("list", runs)).lines, []);
    const add = ["add", file, runs, "--tokenizer", "gpt2", "--column=body", "--name=greetings"];
    const { lines: [name], notes: [note] } = await shoal(...add);
    assert.match(name!, /^corpus:[0-9a-f]{16}$/);
    assert.match(note!, /greetings: .* tokens of 200 documents, 50257 kinds; train with --dataset=corpus:/);
    const corpora = join(folder, "runs", "corpora");
    // What a process left behind that was killed goes; what another one is writing now stays.
    for (const left of [".writing-old", ".writing-new"]) await Deno.mkdir(join(corpora, left));
    await Deno.utime(join(corpora, ".writing-old"), 1000, 1000);
    assert.deepEqual((await shoal(...add)).lines, [name], "the same text is the one that is there");
    assert.deepEqual([...Deno.readDirSync(corpora)].map((it) => it.name).filter((it) => it.startsWith(".")), [
      ".writing-new",
    ]);
    await Deno.remove(join(corpora, ".writing-new"));
    const corpus = await loadCorpus(name!, undefined, null, { folder: corpora });
    assert.deepEqual([...corpus.tokens.subarray(0, 3)], [15496, 995, 657]);
    const [row] = (await shoal("list", runs)).lines;
    assert.match(row!, /^[0-9a-f]{16} {2}greetings {2}gpt2 {2}[0-9.k]+ tokens$/);
    const config = readConfig({ ...SMALL, dataset: name! });
    const spec = specOf(config, corpus.vocab.length);
    RunLog.create(join(folder, "runs", "first"), { config, spec, corpusHash: corpus.hash, committed: 0 })
      .close();
    await assert.rejects(shoal("remove", name!, runs), refusal("usage", /used by "first"/));
    const [info] = (await shoal("list", runs, "--json")).lines.map((it) => JSON.parse(it) as CorpusInfo);
    assert.deepEqual([info?.usedBy, info?.documents], [["first"], 200]);
    // As the file that it was made of, which a run reads where it lies while it goes on.
    const begin = {
      config: readConfig({ ...SMALL, dataset: file }),
      spec,
      corpusHash: corpus.hash,
      committed: 0,
    };
    const log = RunLog.create(join(folder, "runs", "first"), begin);
    await assert.rejects(shoal("remove", name!, runs), refusal("usage", /used by "first"/));
    log.appendEnd({ step: 0, checkpoint: "" });
    log.close();
    assert.deepEqual((await shoal("remove", name!, runs)).lines, [`removed ${name}`]);
    assert.deepEqual([...Deno.readDirSync(corpora)], []);
    await assert.rejects(shoal("remove", name!, runs), refusal("usage", /there is no text/));
  }));

Deno.test("corpus: a running coordinator takes a text from the command line under the same name", () =>
  withHub(async (site) => {
    const { folder, server: { adminLink } } = site;
    const file = join(folder, "a.txt"), elsewhere = `--runs_dir=${join(folder, "other")}`;
    await Deno.writeTextFile(file, "the cat sat on the mat\n".repeat(9000));
    const [name] = (await shoal("add", file, `--hub=${adminLink}`)).lines;
    assert.deepEqual((await shoal("add", file, elsewhere)).lines, [name]);
    const again = await shoal("add", file, `--hub=${adminLink}`);
    assert.deepEqual([again.lines, again.shown], [[name], []], "what is there is not sent again");
    const [info] = (await shoal("list", "--json", `--hub=${adminLink}`)).lines.map((it) => JSON.parse(it));
    assert.deepEqual([`corpus:${info.id}`, info.name, info.tokens], [name, "a.txt", 207_000]);
    await make(site, "reader", { config: { ...SMALL, dataset: name! } });
    await assert.rejects(shoal("remove", name!, `--hub=${adminLink}`), refusal("usage", /used by "reader"/));
    // Its own list would not know of a change behind its back.
    const behind = shoal("add", file, `--runs_dir=${join(folder, "runs")}`);
    await assert.rejects(behind, refusal("usage", /a coordinator serves .*; give its organizer's link/));
    const bad = join(folder, "bad.jsonl");
    await Deno.writeTextFile(bad, '{"text": "a"}\n{"text": 7}\n');
    await assert.rejects(shoal("add", bad, `--hub=${adminLink}`), refusal("bad-corpus", /line 2/));
    const wrong = adminLink.replace(/#.*/, "#wrong");
    await assert.rejects(shoal("list", `--hub=${wrong}`), refusal("bad-token", /the token/));
  }));

Deno.test("corpus: what is typed wrong or cannot be read is told, and leaves nothing behind", () =>
  inFolder(async (folder) => {
    const runs = `--runs_dir=${join(folder, "runs")}`, bad = join(folder, "bad.jsonl");
    await Deno.writeTextFile(bad, '{"text": "a"}\n\n{"text": \n');
    const wrong: [string[], string, RegExp][] = [
      [[], "usage", /an order is missing; use add, list, remove/],
      [["ad"], "usage", /did you mean "add"/],
      [["add"], "usage", /wants a file/],
      [["list", "x"], "usage", /"x" is not expected/],
      [["list", "--hub=x"], "usage", /--hub is "x"; use the organizer's link/],
      [["list", "--hub=http://h/#t", runs], "usage", /two places/],
      [["add", bad, runs], "bad-corpus", /line 3/],
      [["add", join(folder, "none.txt"), runs], "bad-corpus", /none.txt/],
      [["add", bad, runs, "--tokenizer=none.json"], "bad-corpus", /the tokenizer "none.json" cannot be read/],
      [["remove", "../../etc", runs], "usage", /there is no text/],
    ];
    for (const [args, code, pattern] of wrong) {
      await assert.rejects(shoal(...args), refusal(code, pattern), args.join(" "));
    }
    assert.deepEqual((await shoal("list", runs)).lines, []);
    await Deno.mkdir(join(folder, "runs", "corpora"), { recursive: true });
    assert.deepEqual([...Deno.readDirSync(join(folder, "runs", "corpora"))], []);
  }));

Deno.test("corpus: the process reads its file and writes the runs' folder, or asks the coordinator alone", () => {
  const around = { root: "/r", cwd: "/w", tmp: "/tmp", deno: "/r/deno", chromium: null };
  const local = permissionsFor("corpus", ["add", "a.txt", "--tokenizer=t.json", "--runs_dir", "all"], around);
  assert.deepEqual(local, [
    "--allow-read=/r,/w/a.txt,/w/t.json,/w/all",
    "--allow-write=/w/all",
    "--allow-env",
  ]);
  const listed = permissionsFor("corpus", ["list"], around);
  assert.deepEqual(listed, ["--allow-read=/r,/w/runs", "--allow-env"]);
  const remote = permissionsFor("corpus", ["add", "/x/a.txt", "--hub=https://h.example/runs#t"], around);
  assert.deepEqual(remote, ["--allow-read=/r,/x/a.txt", "--allow-net=h.example:443", "--allow-env"]);
});
