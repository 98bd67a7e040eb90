// Tools of the command line, and completion scripts that a real shell reads.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { CONFIG_KEYS, DEFAULT_CONFIG, keyChoices } from "../../peer/model/config.ts";
import { ENGINES } from "../../peer/wire/status.ts";
import { completionScript } from "./completion.mjs";
import { configKeys, pathKeys } from "./config_keys.mjs";
import { benchNames, scriptFor, toolHelp, tools } from "./tools.mjs";
import { mainHelp, verbs } from "./usage.mjs";

const SCRIPTS = { test: "x", sim: "x", "bench:plan": "x", "bench:engine": "x" };

Deno.test("tools: a benchmark is named, its flags are handed on, and what is none is not run", () => {
  assert.deepEqual(scriptFor("bench", ["plan", "--json"], SCRIPTS), {
    script: "bench:plan",
    args: ["--json"],
  });
  assert.deepEqual(scriptFor("sim", ["--seeds=3"], SCRIPTS), { script: "sim", args: ["--seeds=3"] });
  for (const args of [[], ["test"], ["../x"], ["toString"]]) {
    assert.equal(scriptFor("bench", args, SCRIPTS), null);
  }
  assert.deepEqual(benchNames(SCRIPTS), ["engine", "plan"]);
});

Deno.test("tools: the help names each", () => {
  const main = mainHelp("1.2.3");
  for (const tool of tools) {
    assert.ok(main.includes(tool.name) && main.includes(tool.summary));
    assert.ok(toolHelp(tool).startsWith(`usage: ${tool.usage}`));
  }
});

/** What bash would offer for command lines whose last word is being typed; one shell is asked for all of them. */
function offeredFor(lines: readonly (readonly string[])[]): string[][] {
  const asked = lines.map((words) => {
    const line = ["shoal", ...words].map((word) => `'${word}'`).join(" ");
    return `COMPREPLY=(); COMP_WORDS=(${line}); COMP_CWORD=${words.length}; _shoal; ` +
      `printf '%s\\n' "\${COMPREPLY[@]}" END`;
  });
  const script = [completionScript("bash"), ...asked].join("\n");
  const output = execFileSync("bash", ["-c", script], { encoding: "utf8" });
  return output.split("END\n").map((part) => part.split("\n").filter((word) => word !== ""));
}

function offered(...words: string[]): string[] {
  return offeredFor([words])[0]!;
}

Deno.test("completion: bash offers every verb, a verb's flags, and files where a file is wanted", () => {
  assert.deepEqual(offered("coo"), ["coordinator"]);
  const [all, ...flags] = offeredFor([[""], ...verbs.map((verb) => [verb.name, "--"])]);
  verbs.forEach((verb, i) => {
    assert.ok(all!.includes(verb.name));
    const keys = verb.config ? CONFIG_KEYS.map((key) => `--${key}=`) : [];
    const own = verb.flags.map((flag) => `--${flag.name}`);
    assert.deepEqual(flags[i]!.sort(), [...own, ...keys].sort(), verb.name);
  });
  assert.deepEqual(offered("completion", "z"), ["zsh"]);
  assert.ok(offered("coordinator", "--config", "deno").includes("deno.json"));
});

Deno.test("completion: bash offers what a flag or a configuration key may be, after a space as after =", () => {
  const cases: [string[], string[]][] = [
    [["run", "--schedule", "=", "dyn"], ["dynamic"]],
    [["run", "--schedule", "dyn"], ["dynamic"]],
    [["run", "--schedule=dyn"], ["--schedule=dynamic"]],
    [["coordinator", "--codec_forward", "="], ["raw32", "f16s", "i8b64"]],
    [["resume", "--shadows", "=", "f"], ["false"]],
    [["demo", "--tokenizer", "=", "gp"], ["gpt2"]],
    [["demo", "tokenizer", "=", "gp"], ["gpt2"]],
    [["run", "dtype", "="], ["f32", "f16"]],
    [["peer", "--engine", "tfjs-we"], ["tfjs-webgpu"]],
    [["export", "--dtype", "=", "q"], ["q8_0"]],
    [["run", "--dtype", "=", "q"], []],
    [["run", "--n_layer", "=", ""], []],
    [["run", "--n_layer", "="], []],
    [["corpus", "re"], ["remove"]],
    // A verb without configuration keys has none.
    [["peer", "--sched"], []],
    [["run", "--sched"], ["--schedule="]],
  ];
  const found = offeredFor(cases.map(([words]) => words));
  cases.forEach(([words, wanted], i) => assert.deepEqual(found[i], wanted, words.join(" ")));
  assert.ok(offered("run", "--dataset", "=", "").some((file) => file === "deno.json"));
});

Deno.test("completion: the keys and what they may be are those that the configuration knows", () => {
  assert.deepEqual(Object.keys(configKeys), [...CONFIG_KEYS]);
  for (const key of CONFIG_KEYS) {
    const usual = typeof DEFAULT_CONFIG[key] === "boolean" ? ["true", "false"] : [];
    const wanted = keyChoices(key) ?? usual;
    if (pathKeys.includes(key)) assert.ok(configKeys[key]?.includes(String(DEFAULT_CONFIG[key])), key);
    else assert.deepEqual(configKeys[key], wanted, key);
  }
  const engine = verbs.flatMap(({ flags }) => flags).find(({ name }) => name === "engine");
  assert.deepEqual(engine?.choices, ["auto", ...ENGINES]);
});

Deno.test("completion: zsh and fish get every verb too, an unknown shell gets nothing", () => {
  const [zsh, fish] = [completionScript("zsh"), completionScript("fish")];
  for (const { name, flags } of verbs) {
    assert.ok(zsh?.includes(`    ${name}) words=`));
    assert.ok(fish?.includes(`-a ${name} -d`));
    for (const flag of flags) assert.ok(fish?.includes(`from ${name}" -l ${flag.name}`));
  }
  assert.match(
    fish!,
    /from demo run coordinator resume import" -l schedule -x -a 'dynamic gpipe .*2bw( auto)?' -d/,
  );
  assert.equal(completionScript("tcsh"), null);
});
