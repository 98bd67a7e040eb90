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

/** How spaces become low lines: by a normalizer, as older files have it, or by what cuts the text. */
export type SpaceRule = "normalizer" | "metaspace";

/** Text of a tokenizer.json of SentencePiece's kind, with the plain ones of GPT-2's most frequent pairs. */
export function smallSentencePieces(merges: number, rule: SpaceRule = "normalizer"): string {
  const { model } = JSON.parse(gpt2TokenizerJson());
  const pieces = (model.merges as string[]).map((pair) => pair.replace(" ", "").replaceAll("Ġ", "▁"));
  const plain = pieces.filter((piece) => /^▁?[a-z]+$/i.test(piece)).slice(0, merges);
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  const letters = [..."▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;!?'-\"\né"];
  const specials = ["<unk>", "<s>", "</s>"];
  const names = [...specials, ...bytes, ...plain, ...letters], known = new Set(names);
  const pairs = plain.flatMap((piece) => {
    const cuts = Array.from(
      { length: piece.length - 1 },
      (_, i) => [piece.slice(0, i + 1), piece.slice(i + 1)],
    );
    return cuts.filter((parts) => parts.every((part) => known.has(part))).map((parts) => parts.join(" "));
  });
  const added = specials.map((content, id) => ({
    ...{ id, content, special: true, single_word: false, lstrip: false, rstrip: false, normalized: false },
  }));
  const space = { type: "Replace", pattern: { String: " " }, content: "▁" };
  const metaspace = { type: "Metaspace", replacement: "▁", prepend_scheme: "first", split: false };
  const begin = { SpecialToken: { id: "<s>", type_id: 0 } }, text = { Sequence: { id: "A", type_id: 0 } };
  return JSON.stringify({
    ...{ version: "1.0", truncation: null, padding: null, added_tokens: added },
    normalizer: rule === "metaspace"
      ? null
      : { type: "Sequence", normalizers: [{ type: "Prepend", prepend: "▁" }, space] },
    pre_tokenizer: rule === "metaspace" ? metaspace : null,
    post_processor: {
      ...{ type: "TemplateProcessing", single: [begin, text], pair: [begin, text, begin, text] },
      special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } },
    },
    decoder: {
      type: "Sequence",
      decoders: [
        { type: "Replace", pattern: { String: "▁" }, content: " " },
        { type: "ByteFallback" },
        { type: "Fuse" },
        { type: "Strip", content: " ", start: 1, stop: 0 },
      ],
    },
    model: {
      ...{ type: "BPE", dropout: null, unk_token: "<unk>", fuse_unk: true, byte_fallback: true },
      ...{ continuing_subword_prefix: null, end_of_word_suffix: null, ignore_merges: false },
      vocab: Object.fromEntries(names.map((name, id) => [name, id])),
      merges: pairs,
    },
  });
}
