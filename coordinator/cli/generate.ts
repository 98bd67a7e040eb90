// `shoal generate`: continues a prompt with the weights of a checkpoint, on the CPU.
// No network, no GPU, nothing written: text goes to stdout, notes to stderr.
import { createSampler } from "../../peer/engine/sampler.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { charTokenizer } from "../../peer/model/tokenizer.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { readCheckpoint, stageStateOf } from "../store/checkpoints.ts";
import { findCheckpoint } from "./checkpoint_path.ts";
import { integerFlag, numberFlag, positional, requiredFlag, type VerbOptions } from "./options.ts";

/** Enough for a page of text; more is a slip of the keyboard. */
const COUNT_MAX = 100_000;

export interface Generated {
  checkpoint: string;
  step: number;
  prompt: string;
  /** The continuation alone. */
  text: string;
}

/** @throws {ShoalError} usage, bad-checkpoint, or bad-corpus for a prompt outside the vocabulary. */
export async function generate(options: VerbOptions): Promise<Generated> {
  positional(options, 0);
  const prompt = requiredFlag(options, "prompt");
  const count = integerFlag(options, "count", { absent: 200, min: 1, max: COUNT_MAX });
  const temperature = numberFlag(options, "temperature", { absent: 0.8, min: 0, max: 100 });
  const topK = integerFlag(options, "top_k", { absent: 0, min: 0, max: 1_000_000 });
  const seed = integerFlag(options, "seed", { absent: 1337, min: 0, max: 0xffff_ffff });
  const path = await findCheckpoint(requiredFlag(options, "checkpoint"));
  const checkpoint = await readCheckpoint(path);
  const { spec, vocab, step } = checkpoint.manifest;
  const tokenizer = charTokenizer(vocab);
  const tokens = Array.from(encodePrompt(tokenizer, prompt));
  const { params } = stageStateOf(checkpoint, wholeModel(spec));
  const written = createSampler(spec, params).generate(tokens, { count, temperature, topK, seed });
  return { checkpoint: path, step, prompt, text: tokenizer.decode(written) };
}

function encodePrompt(tokenizer: ReturnType<typeof charTokenizer>, prompt: string) {
  const known = new Set(tokenizer.vocab);
  const foreign = [...prompt].find((char) => !known.has(char));
  if (foreign === undefined) return tokenizer.encode(prompt);
  throw new ShoalError(
    "bad-corpus",
    `the model has never seen the character ${JSON.stringify(foreign)}; it knows ${
      JSON.stringify(tokenizer.vocab.join(""))
    }`,
  );
}
