// The states of "Try the model": before the first text, while one is written, and every way in which it may end. Pure and fixed.
import type { Fixture } from "./fixtures_kinds.ts";
import { FIRST_FORM, type GenerateModel, NOTHING_WRITTEN, type Written } from "./view_model_generate.ts";

const form = { ...FIRST_FORM, prompt: "ROMEO:\n" };

const written: Written = {
  ...{ prompt: "ROMEO:\n", seed: 3_141_592_653, step: 341, tokens: 57 },
  text: "And for the world, that I have seen the sea,\nThe night is not so dark as thou hast said.\n\n" +
    "JULIET:\nWhat light is this that through the water breaks?",
};

const byPeers = { live: true, form: { ...form, by: "peers" as const } };
const noCheckpoint = { step: null, tokens: null };
const byTwo = { step: null, live: { steps: [340, 352], restarts: 1 }, tokensPerS: 5.8 };

function state(name: string, model: Partial<GenerateModel>): Fixture {
  return { name: `try-${name}`, page: "generate", model: { ...NOTHING_WRITTEN, form, ...model } };
}

function failed(name: string, code: string, message: string): Fixture {
  return state(name, { phase: "failed", refusal: { code, message } });
}

export const generating: readonly Fixture[] = [
  state("first", { form: FIRST_FORM }),
  state("wrong", { form: { ...form, length: "9000", topP: "0", seed: "1.5", temperature: "warm" } }),
  state("asking", { phase: "asking", written: { ...written, text: "" } }),
  state("writing", { phase: "writing", written: { ...written, step: null, tokens: null } }),
  state("done", { phase: "done", reason: "length", written }),
  state("stopped", { phase: "stopped", written: { ...written, step: null, tokens: null } }),
  state("peers-writing", {
    ...byPeers,
    phase: "writing",
    written: { ...written, ...noCheckpoint, tokensPerS: 6.1 },
  }),
  state("peers-done", { ...byPeers, phase: "done", reason: "length", written: { ...written, ...byTwo } }),
  {
    ...{ name: "try-peers-refused", page: "generate" },
    model: {
      ...{ ...NOTHING_WRITTEN, ...byPeers, phase: "failed" },
      refusal: {
        code: "no-writers",
        message: "tab-3: a copy of stage 2 needs 412 MiB, and 96 MiB of its memory are left",
      },
    },
  },
  failed("no-checkpoint", "no_checkpoint", "the run has no checkpoint yet; try again after its first"),
  failed("busy", "rate_limit_exceeded", "8 texts are waiting already; try again in 40 s"),
  failed(
    "refused",
    "bad-corpus",
    'the prompt has the character "\u00e9", which is not in the vocabulary; leave it out',
  ),
];
