// A byte-level byte-pair tokenizer.json as llama.cpp wants to be told of it: tokens with their kinds, pairs, and the name of the way
// in which a text is cut before pairs are looked for. Pure. What llama.cpp would cut otherwise is refused, not written and wrong.
import { addedTokensOf, textMarks } from "../store/tokenizer_marks.ts";
import { mergesOf, record, TOKEN_KIND, unfit } from "./tokenizer_parts.ts";

export interface BytePairs {
  /** llama.cpp's name of the way a text is cut. */
  pre: string;
  /** Names by number, one per row of the embedding. */
  tokens: readonly string[];
  /** TOKEN_KIND of each. */
  kinds: readonly number[];
  /** "a b", the most frequent pair first. */
  merges: readonly string[];
  /** Numbers of the tokens that begin and end a text. */
  begin: number;
  end: number;
  addsBegin: boolean;
  addsEnd: boolean;
}

/** GPT-2's words, in Hugging Face's notation. */
const GPT2_WORDS = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`;
/** Llama 3's and Qwen 2's differ in how many digits go together. */
const wordsWith = (digits: string) =>
  String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|${digits}` +
  String.raw`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
/** Ways of cutting that llama.cpp knows and whose result is proved equal, by the expression that a Split has. */
const SPLITS: ReadonlyMap<string, string> = new Map([
  [wordsWith(String.raw`\p{N}{1,3}`), "llama-bpe"],
  [wordsWith(String.raw`\p{N}`), "qwen2"],
  [GPT2_WORDS, "gpt-2"],
  [GPT2_WORDS + String.raw`|\s+`, "gpt-2"],
]);
/** The one of them for which llama.cpp takes a word that is a token before it looks for pairs. */
const WHOLE_WORDS = "llama-bpe";

/**
 * @param json A parsed tokenizer.json. @param vocab Names by number, as the checkpoint has them: rows without a token have made-up ones.
 * @throws {ShoalError} usage for a tokenizer of another kind, with the remedy.
 */
export function bytePairsOf(json: unknown, vocab: readonly string[]): BytePairs {
  const model = record(record(json).model), pre = preOf(record(json), model);
  const ids = record(model.vocab), added = addedTokensOf(json), marks = textMarks(json);
  const kinds = vocab.map((): number => TOKEN_KIND.unused), tokens = [...vocab];
  const set = (id: number, name: string, kind: number) => {
    if (!(Number.isInteger(id) && id >= 0 && id < tokens.length)) {
      throw unfit(`token ${JSON.stringify(name).slice(0, 60)} has no row in the model`);
    }
    tokens[id] = name;
    kinds[id] = kind;
  };
  for (const [name, id] of Object.entries(ids)) set(Number(id), name, TOKEN_KIND.normal);
  for (const { id, content, special } of added) {
    set(id, content, special ? TOKEN_KIND.control : TOKEN_KIND.own);
  }
  // llama.cpp takes token 11 for the end of a text where the file names none.
  const end = marks.end?.id ?? kinds.indexOf(TOKEN_KIND.unused);
  if (end < 0) throw unfit("it has no token that ends a text, which llama.cpp cannot do without");
  return {
    ...{ pre, tokens, kinds, merges: mergesOf(model), end, begin: marks.begin?.id ?? end },
    ...{ addsBegin: marks.addsBegin, addsEnd: marks.addsEnd },
  };
}

/** llama.cpp's name of what happens to a text before pairs are looked for. @throws {ShoalError} usage */
function preOf(json: Record<string, unknown>, model: Record<string, unknown>): string {
  if (model.type !== "BPE" || model.byte_fallback === true) {
    throw unfit("it is no byte-level byte-pair model");
  }
  for (const name of ["continuing_subword_prefix", "end_of_word_suffix"]) {
    if ((model[name] ?? "") !== "") throw unfit(`its model has a ${name}`);
  }
  const pre = splitOf(json.pre_tokenizer);
  if (pre === null) throw unfit("llama.cpp does not know its way of cutting a text into words");
  // Qwen's composes accents first; llama.cpp leaves that to who writes the text, as its own converter does.
  const { type: normalizer } = record(json.normalizer);
  if (normalizer !== undefined && !(pre === "qwen2" && normalizer === "NFC")) {
    throw unfit(`its normalizer ${JSON.stringify(normalizer)} has no place in the file`);
  }
  if ((model.ignore_merges === true) === (pre === WHOLE_WORDS)) return pre;
  throw unfit(`its ignore_merges is not what llama.cpp takes for granted of "${pre}"`);
}

function splitOf(pre: unknown): string | null {
  const { type, pretokenizers } = record(pre);
  if (type === "ByteLevel") return bytesOnly(pre, true) ? "gpt-2" : null;
  if (type !== "Sequence" || !Array.isArray(pretokenizers) || pretokenizers.length !== 2) return null;
  const first = record(pretokenizers[0]), last = pretokenizers[1];
  if (first.type === "Digits") {
    return first.individual_digits === true && bytesOnly(last, true) ? "smollm" : null;
  }
  const { Regex: expression } = record(first.pattern);
  const isolates = first.type === "Split" && first.behavior === "Isolated" && first.invert !== true;
  if (!isolates || !bytesOnly(last, false)) return null;
  return SPLITS.get(String(expression)) ?? null;
}

/** A ByteLevel that leaves a text's beginning alone, and cuts GPT-2's words or nothing. */
function bytesOnly(it: unknown, words: boolean): boolean {
  const { type, add_prefix_space, use_regex } = record(it);
  return type === "ByteLevel" && add_prefix_space === false && (use_regex !== false) === words;
}
