// What a GGUF file says of a model's tokenizer: single characters, byte-level pairs, or SentencePiece's pairs. Pure. llama.cpp must
// give a text the tokens that the model was trained with.
import { bytePairsOf } from "./byte_pairs.ts";
import type { GgufValue } from "./gguf_writer.ts";
import { isSentencePieces, sentencePiecesOf } from "./sentence_pieces.ts";
import { parseTokenizer, TOKEN_KIND } from "./tokenizer_parts.ts";

type Metadata = Record<string, GgufValue>;

/**
 * @param vocab Names by token number. @param json Text of the tokenizer.json that the model has instead of characters.
 * @throws {ShoalError} usage for a tokenizer.json that llama.cpp would not follow.
 */
export function tokenizerMetadata(vocab: readonly string[], json: string | null): Metadata {
  if (json === null) return characters(vocab);
  const parsed = parseTokenizer(json);
  return isSentencePieces(parsed) ? sentencePieces(vocab, parsed) : bytePairs(vocab, parsed);
}

/**
 * llama.cpp's longest-match tokenizer over a plain list ("rwkv"): with a list of single characters it gives one token per
 * character. It is also the only one without a compulsory end-of-text token; any other would make a character end the text.
 */
function characters(vocab: readonly string[]): Metadata {
  return {
    "tokenizer.ggml.model": { type: "string", value: "rwkv" },
    "tokenizer.ggml.tokens": { type: "strings", values: vocab.map(escapeToken) },
    "tokenizer.ggml.token_type": { type: "i32s", values: vocab.map(() => TOKEN_KIND.normal) },
    "tokenizer.ggml.add_bos_token": { type: "bool", value: false },
    "tokenizer.ggml.add_eos_token": { type: "bool", value: false },
  };
}

/** That tokenizer's list is escaped: a backslash begins an escape, and control characters are written as \xhh. */
export function escapeToken(char: string): string {
  if (char === "\\") return "\\\\";
  const code = char.codePointAt(0)!;
  return code < 0x20 || code === 0x7f ? `\\x${code.toString(16).padStart(2, "0")}` : char;
}

function bytePairs(vocab: readonly string[], json: unknown): Metadata {
  const { pre, tokens, kinds, merges, ...marks } = bytePairsOf(json, vocab);
  return {
    "tokenizer.ggml.model": { type: "string", value: "gpt2" },
    "tokenizer.ggml.pre": { type: "string", value: pre },
    "tokenizer.ggml.tokens": { type: "strings", values: tokens },
    "tokenizer.ggml.token_type": { type: "i32s", values: kinds },
    "tokenizer.ggml.merges": { type: "strings", values: merges },
    ...marksOf(marks),
  };
}

/** llama.cpp calls SentencePiece's pairs after the first model that it read. */
function sentencePieces(vocab: readonly string[], json: unknown): Metadata {
  const { tokens, kinds, scores, spaceBefore, unknown, ...marks } = sentencePiecesOf(json, vocab);
  return {
    "tokenizer.ggml.model": { type: "string", value: "llama" },
    "tokenizer.ggml.pre": { type: "string", value: "default" },
    "tokenizer.ggml.tokens": { type: "strings", values: tokens },
    "tokenizer.ggml.scores": { type: "f32s", values: scores },
    "tokenizer.ggml.token_type": { type: "i32s", values: kinds },
    ...marksOf(marks),
    ...(unknown === null
      ? {}
      : { "tokenizer.ggml.unknown_token_id": { type: "u32" as const, value: unknown } }),
    "tokenizer.ggml.add_space_prefix": { type: "bool", value: spaceBefore },
  };
}

interface Marks {
  begin: number;
  end: number;
  addsBegin: boolean;
  addsEnd: boolean;
}

function marksOf({ begin, end, addsBegin, addsEnd }: Marks): Metadata {
  return {
    "tokenizer.ggml.bos_token_id": { type: "u32", value: begin },
    "tokenizer.ggml.eos_token_id": { type: "u32", value: end },
    "tokenizer.ggml.add_bos_token": { type: "bool", value: addsBegin },
    "tokenizer.ggml.add_eos_token": { type: "bool", value: addsEnd },
  };
}
