// Tools of the command line, and completion scripts that a real shell reads.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { completionScript } from "./completion.mjs";
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

/** What bash would offer for a command line whose last word is being typed. */
function offered(...words: string[]): string[] {
  const line = ["shoal", ...words].map((word) => `'${word}'`).join(" ");
  const script = `${completionScript("bash")}
COMP_WORDS=(${line}); COMP_CWORD=${words.length}; _shoal; printf '%s\\n' "\${COMPREPLY[@]}"`;
  return execFileSync("bash", ["-c", script], { encoding: "utf8" }).split("\n").filter((word) => word !== "");
}

Deno.test("completion: bash offers every verb, a verb's flags, and files where a file is wanted", () => {
  assert.deepEqual(offered("coo"), ["coordinator"]);
  for (const verb of verbs) {
    assert.ok(offered("").includes(verb.name));
    assert.deepEqual(
      offered(verb.name, "--").sort(),
      verb.flags.map((flag) => `--${flag.name}`).sort(),
      verb.name,
    );
  }
  assert.deepEqual(offered("completion", "z"), ["zsh"]);
  assert.ok(offered("coordinator", "--config", "deno").includes("deno.json"));
});

Deno.test("completion: zsh and fish get every verb too, an unknown shell gets nothing", () => {
  const [zsh, fish] = [completionScript("zsh"), completionScript("fish")];
  for (const { name, flags } of verbs) {
    assert.ok(zsh?.includes(`    ${name}) words=`));
    assert.ok(fish?.includes(`-a ${name} -d`));
    for (const flag of flags) assert.ok(fish?.includes(`from ${name}" -l ${flag.name}`));
  }
  assert.equal(completionScript("tcsh"), null);
});
