// Mutants of what follows an overflow in halves (`dtype` f16): who knows of it, what is said, and what is remembered. A list only;
// mutants.ts applies it.
import type { Mutant } from "./mutants.ts";

export const OVERFLOW_MUTANTS: readonly Mutant[] = [
  {
    name: "overflow: a holder applies a step that is passed over",
    file: "peer/holder.ts",
    replace: [["    if (job.skip === true) passOver(held.state, held.total, options);\n    else ", "    "]],
    scenario: "overflow",
    seeds: 20,
    noticed: /^I[48] /,
  },
  {
    name: "overflow: a sum does not tell of it, and who computed it dies before it says so",
    file: "peer/held_sums.ts",
    replace: [["exponent: overflows(held, config) ? 1 : 0", "exponent: 0"]],
    scenario: "overflow",
    seeds: 300,
    noticed: /^I[248] /,
  },
  {
    name: "overflow: what is not finite in others' parts is not looked at",
    file: "peer/held_sums.ts",
    replace: [[
      "?? {};\n  held.overflow ||= overflow;\n  assert(",
      "?? {};\n  assert(overflow || !overflow);\n  assert(",
    ]],
    scenario: "overflow",
    seeds: 300,
    noticed: /^I[248] /,
  },
  {
    name: "overflow: a restarted coordinator begins with the first loss scale again",
    file: "coordinator/core/regather.ts",
    replace: [["  s.lossScales = record.lossScales ?? [];\n", ""]],
    scenario: "overflow",
    seeds: 200,
    noticed: /^I[248] /,
  },
  {
    name: "overflow: a step that is done again has the loss scale that came after it",
    file: "coordinator/core/loss_scale.ts",
    replace: [["lossScales.findLast(({ step }) => step <= committed)", "lossScales.at(-1)"]],
    scenario: "overflow",
    seeds: 300,
    noticed: /^I[248] /,
  },
];
