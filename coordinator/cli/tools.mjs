// Commands of `shoal` that are no part of a run: measuring, simulating, completing. shoal.mjs carries them out itself or hands
// them to the package's scripts. Plain JavaScript without imports, as usage.mjs.
// @ts-check

/** @typedef {{ name: string; summary: string; usage: string; more: string[] }} Tool */

/** @type {Tool[]} */
export const tools = [
  {
    name: "bench",
    summary: "measure kernels, engines, plans, links or recovery on this machine",
    usage: "shoal bench NAME [flags]",
    more: ["Without a name it lists what there is; shoal bench NAME --help explains one."],
  },
  {
    name: "sim",
    summary: "play whole runs with random faults in one thread, and check that nothing is lost",
    usage: "shoal sim [flags]",
    more: ["shoal sim --help lists scenarios and flags."],
  },
  {
    name: "completion",
    summary: "print a script that lets the shell complete verbs and flags",
    usage: "shoal completion bash|zsh|fish",
    more: [
      "bash: shoal completion bash > ~/.local/share/bash-completion/completions/shoal",
      "zsh:  shoal completion zsh > ~/.shoal-completion.zsh, and source it in ~/.zshrc",
      "fish: shoal completion fish > ~/.config/fish/completions/shoal.fish",
    ],
  },
];

/** @param {Tool} tool */
export function toolHelp(tool) {
  return [`usage: ${tool.usage}`, tool.summary, "", ...tool.more].join("\n");
}

/**
 * The package script that a tool's command line names, and what is handed on to it; null if it names none.
 * @param {string} tool
 * @param {string[]} args
 * @param {Readonly<Record<string, string>>} scripts of package.json
 * @returns {{ script: string; args: string[] } | null}
 */
export function scriptFor(tool, args, scripts) {
  if (tool === "sim") return { script: "sim", args };
  const [name, ...rest] = args;
  const script = `bench:${name}`;
  return Object.hasOwn(scripts, script) ? { script, args: rest } : null;
}

/** Benchmarks that there are. @param {Readonly<Record<string, string>>} scripts */
export function benchNames(scripts) {
  return Object.keys(scripts).flatMap((name) => name.startsWith("bench:") ? [name.slice(6)] : []).sort();
}
