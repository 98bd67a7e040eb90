// Small byte-level byte-pair tokenizers, cut out of GPT-2's: its 256 bytes, its most frequent pairs and its token for a text's end, with any
// of the usual ways of cutting a text into words. Also texts that tokenizers stumble over.
import { END_OF_TEXT, gpt2TokenizerJson } from "../../coordinator/corpora/gpt2.ts";

const WORDS = String.raw`[^\r\n\p{L}\p{N}]?\p{L}+`;
const SIGNS = String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

export type WordCutter = "gpt-2" | "smollm" | "llama-bpe" | "qwen2";

const bytes = (use_regex: boolean) => ({
  type: "ByteLevel",
  add_prefix_space: false,
  trim_offsets: true,
  use_regex,
});
const split = (Regex: string) => ({ type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false });
const sequence = (...pretokenizers: unknown[]) => ({ type: "Sequence", pretokenizers });

const CUTTERS: Readonly<Record<WordCutter, unknown>> = {
  "gpt-2": bytes(true),
  "smollm": sequence({ type: "Digits", individual_digits: true }, bytes(true)),
  "llama-bpe": sequence(split(String.raw`${CONTRACTIONS}|${WORDS}|\p{N}{1,3}|${SIGNS}`), bytes(false)),
  "qwen2": sequence(split(String.raw`${CONTRACTIONS}|${WORDS}|\p{N}|${SIGNS}`), bytes(false)),
};

/** Contractions, runs of digits and of spaces, ends of lines of both kinds, scripts, combining marks, emoji of several code points. */
export const AWKWARD_TEXTS = [
  "Call me Ishmael. Some years ago",
  "I'd've said IT'S they'LL, 'tis",
  "  two  spaces   and\ttabs \t end ",
  "1234567 12 3.14159e-10 ½ ٣٤",
  "line\n\n\nlines\r\n\r\n  indented\n",
  "naïve café, Ångström, e\u0301",
  "漢字かな交じり文。한국어",
  "🐋👩‍👩‍👧 🇩🇪!?",
  "\u0000\u0007 \u00a0\u2003 \u200b",
  "<|endoftext",
  "x=>{return[a,b]};//...",
];

/** Text of a tokenizer.json. @param merges How many of GPT-2's pairs. */
export function smallBytePairs(merges: number, cutter: WordCutter = "gpt-2"): string {
  const { model, ...json } = JSON.parse(gpt2TokenizerJson());
  const pairs: string[] = model.merges.slice(0, merges);
  const names = Object.keys(model.vocab).filter((name) => [...name].length === 1);
  const all = [...names, ...pairs.map((pair) => pair.replace(" ", ""))];
  const [end] = json.added_tokens;
  return JSON.stringify({
    ...json,
    added_tokens: [{ ...end, id: all.length, content: END_OF_TEXT }],
    pre_tokenizer: CUTTERS[cutter],
    model: {
      ...model,
      ignore_merges: cutter === "llama-bpe",
      vocab: Object.fromEntries(all.map((name, id) => [name, id])),
      merges: pairs,
    },
  });
}
