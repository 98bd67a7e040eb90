// A model's tokenizer as Hugging Face's tokenizer.json and tokenizer_config.json: the run's characters, or the file that the model came
// with. Pure. The same text must give the same ids as charTokenizer: one per Unicode code point, nothing added, nothing normalised.
import { addedTokensOf, textMarks } from "../store/tokenizer_marks.ts";
import { type ExportFile, jsonFile, textFile } from "./pieces.ts";

/**
 * A byte-pair model without merges splits text into its code points, which is this tokenizer. Characters outside the
 * vocabulary are left out, since the model has no token for the unknown.
 */
export function tokenizerJson(vocab: readonly string[]): Record<string, unknown> {
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: null,
    post_processor: null,
    // Without a decoder, tokens would be joined by spaces.
    decoder: { type: "Fuse" },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab: Object.fromEntries(vocab.map((char, id) => [char, id])),
      merges: [],
    },
  };
}

/** `contextLength` in tokens. @param json A parsed tokenizer.json that the model came with; absent: characters. */
export function tokenizerConfig(contextLength: number, json: unknown = {}): Record<string, unknown> {
  const { begin, end } = textMarks(json), model = (json as { model?: { unk_token?: unknown } }).model;
  const added = addedTokensOf(json).map(({ id, ...token }) => [id, token] as const);
  return {
    tokenizer_class: "PreTrainedTokenizerFast",
    model_max_length: contextLength,
    // Cleaning would drop spaces before punctuation, which are characters that the model wrote.
    clean_up_tokenization_spaces: false,
    // transformers puts this over what tokenizer.json says.
    ...(addsSpace(json) ? { add_prefix_space: true } : {}),
    bos_token: begin?.content ?? null,
    eos_token: end?.content ?? null,
    unk_token: model?.unk_token ?? null,
    pad_token: null,
    added_tokens_decoder: Object.fromEntries(added),
  };
}

function addsSpace(json: unknown): boolean {
  const { pre_tokenizer: pre } = json as { pre_tokenizer?: { add_prefix_space?: unknown } | null };
  return pre?.add_prefix_space === true;
}

/** @param json Text of the tokenizer.json that the model came with: it goes on as it is. */
export function tokenizerFiles(
  vocab: readonly string[],
  contextLength: number,
  json: string | null = null,
): ExportFile[] {
  return [
    json === null ? jsonFile("tokenizer.json", tokenizerJson(vocab)) : textFile("tokenizer.json", json),
    jsonFile("tokenizer_config.json", tokenizerConfig(contextLength, json === null ? {} : JSON.parse(json))),
  ];
}
