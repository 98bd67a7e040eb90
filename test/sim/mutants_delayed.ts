// Mutants of what two open steps at once need (schedule 2bw): sums that wait for their turn, departures that meet both steps, and
// nothing in between. A list only; mutants.ts applies it.
import type { Mutant } from "./mutants.ts";

export const DELAYED_MUTANTS: readonly Mutant[] = [
  {
    name: "2bw: what was summed of the next step is thrown away when it is its turn",
    file: "peer/held.ts",
    replace: [[
      "  if (ahead?.step !== step) return void",
      "  if (ahead?.step !== step || step > 0) return void",
    ]],
    scenario: "2bw",
    seeds: 20,
    noticed: /^I[2478] /,
  },
  {
    name: "2bw: a departure leaves its share of the next step undone",
    file: "peer/core/amend.ts",
    replace: [["    extendShare(state, instance, ahead);\n", ""]],
    scenario: "2bw",
    seeds: 60,
    noticed: /^I[4578] /,
  },
  {
    name: "2bw: what was sent of the next step is not sent to who takes over",
    file: "peer/core/amend.ts",
    replace: [["    resend(state, instance, { work: ahead, out, wants: fresh });\n", ""]],
    scenario: "2bw",
    seeds: 60,
    noticed: /^I5 /,
  },
  {
    name: "2bw: an operation of the next step that ends while the open one is applied is forgotten",
    file: "peer/core/round.ts",
    replace: [["(work === instance.work && instance.applying)", "instance.applying"]],
    scenario: "2bw",
    seeds: 20,
    noticed: /^(I[2458]|AssertionError) |: slot /,
  },
  {
    name: "2bw: work is dealt out anew while the next step is begun",
    file: "coordinator/core/commit.ts",
    replace: [[
      "  if (ahead) goOn(turn);\n  else afterBoundary(turn);\n",
      "  if (ahead || !ahead) afterBoundary(turn);\n",
    ]],
    scenario: "2bw",
    seeds: 60,
    noticed: /lost micro-batches|^I/,
  },
];
