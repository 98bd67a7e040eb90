// The help table and the nearest-name rule, and the permissions that each verb runs with.
import assert from "node:assert/strict";
import { CONFIG_KEYS, readConfig } from "../../peer/model/config.ts";
import { examples, firstSteps } from "./examples.mjs";
import { parseVerb, verbNamed } from "./options.ts";
import { pairsAsFlags, unknownFlag } from "./pairs.mjs";
import { permissionsFor } from "./permissions.mjs";
import { editDistance, mainHelp, nearest, unknownMessage, verbHelp, verbs } from "./usage.mjs";

Deno.test("edit distance counts a swap of neighbours as one", () => {
  assert.equal(editDistance("", "abc"), 3);
  assert.equal(editDistance("abc", "abc"), 0);
  assert.equal(editDistance("peer", "pere"), 1);
  assert.equal(editDistance("kitten", "sitting"), 3);
});

Deno.test("the nearest name is offered for a slip and not for another word", () => {
  const names = verbs.map((verb) => verb.name);
  assert.equal(nearest("coordnator", names), "coordinator");
  assert.equal(nearest("Demo", names), "demo");
  assert.equal(nearest("pere", names), "peer");
  assert.equal(nearest("xylophone", names), null);
  assert.equal(unknownMessage("verb", "dmeo", names), 'unknown verb "dmeo" (did you mean "demo"?)');
  assert.equal(unknownMessage("verb", "xylophone", names), 'unknown verb "xylophone"');
});

Deno.test("the help names every verb and every flag of a verb", () => {
  const main = mainHelp("1.2.3");
  for (const verb of verbs) {
    assert.ok(main.includes(verb.name) && main.includes(verb.summary));
    for (const flag of verb.flags) assert.ok(verbHelp(verb).includes(`--${flag.name}`));
  }
  assert.ok(main.includes("1.2.3"));
});

Deno.test("every example of the help is a line that its verb takes, and every configuration key is named", () => {
  for (const [name, lines] of Object.entries(examples)) {
    const verb = verbs.find((it) => it.name === name)!;
    assert.ok(lines.length > 0);
    for (const line of lines) {
      assert.ok(verbHelp(verb).includes(line), line);
      const [shoal, verbWord, ...words] = line.match(/"[^"]*"|\S+/g)!.map((word) => word.replaceAll('"', ""));
      assert.deepEqual([shoal, verbWord], ["shoal", name]);
      readConfig(parseVerb(verbNamed(name), words).config);
      assert.equal(unknownFlag(verb, pairsAsFlags(verb, words)), null, line);
    }
  }
  const run = verbHelp(verbs.find(({ name }) => name === "run")!);
  for (const key of CONFIG_KEYS) assert.match(run, new RegExp(`\\b${key}\\b`));
  for (const [line] of firstSteps) assert.ok(mainHelp("1").includes(line!));
});

Deno.test("an unknown flag is found before anything is installed, a value with dashes is none", () => {
  const named = (name: string, args: string[]) =>
    unknownFlag(verbs.find((it) => it.name === name)!, args)?.typed;
  assert.equal(named("run", ["--n_layr=3", "--x"]), "--n_layr");
  assert.equal(named("run", ["--n_layer", "3", "--keep"]), "--keep");
  assert.equal(named("generate", ["--prompt=--x", "--json", "--count", "3"]), undefined);
  assert.equal(named("peer", ["--n_layer=3"]), "--n_layer");
});

const around = { root: "/r", cwd: "/w", tmp: "/tmp", deno: "/r/deno", chromium: "/c" };

Deno.test("no verb runs with all permissions, and only demo, run and doctor start programs", () => {
  for (const verb of verbs) {
    const flags = permissionsFor(verb.name, [], around);
    for (const bare of ["-A", "--allow-all", "--allow-read", "--allow-write", "--allow-run", "--allow-net"]) {
      assert.ok(!flags.includes(bare), `${verb.name} ${bare}`);
    }
    const starts = flags.some((flag) => flag.startsWith("--allow-run"));
    assert.equal(starts, ["demo", "run", "doctor"].includes(verb.name), verb.name);
  }
});

Deno.test("a peer may write nothing, and reach only its coordinator", () => {
  const flags = permissionsFor("peer", ["--join", "https://train.example/#token"], around);
  assert.ok(flags.includes("--allow-net=train.example:443"));
  assert.ok(!flags.some((flag) => flag.startsWith("--allow-write")));
  assert.ok(
    permissionsFor("peer", ["--join=http://10.0.0.1:8080/#t"], around).includes("--allow-net=10.0.0.1:8080"),
  );
});

Deno.test("a peer that keeps states may write in their folder alone", () => {
  const flags = permissionsFor("peer", ["--join", "https://train.example/#t", "--state_dir", "kept"], around);
  assert.ok(flags.includes("--allow-write=/w/kept"));
  assert.ok(flags.includes("--allow-read=/r,/w/kept"));
});

Deno.test("a coordinator reads its inputs and writes only its output folder", () => {
  const args = ["--out_dir", "out", "--config=in/c.json", "--dataset", "t.txt", "--host", "0.0.0.0"];
  const flags = permissionsFor("coordinator", args, around);
  assert.ok(flags.includes("--allow-write=/w/out"));
  // The texts of runs/, and those beside its own folder, are read; only a run in runs/ adds to them.
  assert.ok(flags.includes("--allow-read=/r,/w/out,/w/in,/w/t.txt,/w/runs/corpora,/w/corpora"));
  const inside = permissionsFor("run", ["--out_dir=runs/a"], around);
  assert.ok(inside.includes("--allow-write=/w/runs/a,/w/runs/corpora"));
  assert.ok(flags.includes("--allow-net=0.0.0.0"));
});

Deno.test("an export writes its own place and the name it is made under, and nothing beside them", () => {
  const named = permissionsFor("export", ["--checkpoint", "old/run", "--out", "/x/model"], around);
  assert.ok(named.includes("--allow-write=/x/model,/x/.writing-model"));
  assert.ok(
    named.includes(
      "--allow-read=/r,/w/old/run,/w/old/base.safetensors,/w/old/run/metrics.jsonl,/x/model,/x/.writing-model",
    ),
  );
  assert.ok(!named.some((flag) => /^--allow-(net|env|run|ffi)/.test(flag)));
  const step = permissionsFor("export", ["--checkpoint=old/run/checkpoints/step-10"], around);
  assert.ok(step.includes("--allow-write=/w/runs/exports"));
  assert.ok(
    step.includes(
      "--allow-read=/r,/w/old/run/checkpoints/step-10,/w/old/run/base.safetensors," +
        "/w/old/run/checkpoints/base.safetensors,/w/old/run/metrics.jsonl,/w/runs/exports",
    ),
  );
});

Deno.test("a resumed run writes on in its own folder", () => {
  for (const named of ["old/run", "old/run/checkpoints/step-10"]) {
    const flags = permissionsFor("resume", [named], around);
    assert.ok(flags.includes("--allow-write=/w/runs,/w/old/run"), named);
  }
});

Deno.test("an import writes its run's folder alone and reads the model's; neither eval nor serve nor generate writes", () => {
  const flags = permissionsFor("import", ["m/llama", "--out", "runs/tuned", "--dataset", "t.txt"], around);
  assert.ok(flags.includes("--allow-write=/w/runs/tuned"));
  assert.ok(flags.includes("--allow-read=/r,/w/m/llama,/w/runs/tuned"));
  const adapted = permissionsFor("import", ["m", "--out=o", "--adapter", "a/peft"], around);
  assert.ok(adapted.includes("--allow-read=/r,/w/m,/w/a/peft,/w/o"));
  const far = ["https://m.example/llama/", "--out=o", "--model_host", "cdn.example"];
  const asked = permissionsFor("import", far, around);
  assert.ok(asked.includes("--allow-net=m.example:443,cdn.example"), asked.join(" "));
  assert.ok(asked.includes("--allow-read=/r,/w/o"), asked.join(" "));
  assert.ok(!flags.some((flag) => flag.startsWith("--allow-net")));
  const single = permissionsFor("import", ["--out=o", "m/llama/model.safetensors"], around);
  assert.ok(single.includes("--allow-read=/r,/w/m/llama,/w/o"));
  assert.ok(!permissionsFor("import", ["m"], around).some((flag) => flag.startsWith("--allow-write")));
  const live = permissionsFor("generate", ["--url", "https://a.example/admin#t"], around);
  assert.deepEqual(live, ["--allow-read=/r", "--allow-net=a.example:443", "--allow-env"]);
  for (const verb of ["eval", "serve", "generate"]) {
    const flags = permissionsFor(verb, ["--checkpoint", "runs/a", "--dataset=t.txt"], around);
    assert.ok(!flags.some((flag) => flag.startsWith("--allow-write")), verb);
    const reads = flags.find((flag) => flag.startsWith("--allow-read="))?.split(/[=,]/) ?? [];
    // The base of a copied checkpoint's adapters may lie beside it.
    assert.ok(["/w/runs/a", "/w/runs/base.safetensors"].every((path) => reads.includes(path)), verb);
    assert.equal(flags.some((flag) => flag.startsWith("--allow-net")), verb === "serve");
  }
});
