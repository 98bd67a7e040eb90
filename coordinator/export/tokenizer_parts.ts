// What both kinds of pair tokenizers share when they are written as GGUF: kinds of tokens, the list of pairs, and the one refusal. Pure.
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";

/** llama.cpp's numbers for what a token is. */
export const TOKEN_KIND = { normal: 1, unknown: 2, control: 3, own: 4, unused: 5, byte: 6 } as const;

/** @throws {ShoalError} bad-checkpoint if the text is not JSON */
export function parseTokenizer(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    const reason = messageOf(error).slice(0, 200);
    throw new ShoalError("bad-checkpoint", `its tokenizer.json is not JSON: ${reason}`, { cause: error });
  }
}

/** Pairs as "a b". Older files have that, newer ones ["a", "b"]. @throws {ShoalError} usage */
export function mergesOf({ merges }: Record<string, unknown>): string[] {
  return (Array.isArray(merges) ? merges : []).map((pair: unknown) => {
    const parts = typeof pair === "string" ? pair.split(" ") : Array.isArray(pair) ? pair.map(String) : [];
    if (parts.length === 2 && parts.every((part) => part !== "" && !part.includes(" "))) {
      return parts.join(" ");
    }
    throw unfit(`the pair ${JSON.stringify(pair)?.slice(0, 60)} is no pair`);
  });
}

export function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? value as Record<string, unknown> : {};
}

export function unfit(reason: string): ShoalError {
  const remedy = "export it as hf, which llama.cpp's convert_hf_to_gguf.py reads";
  return new ShoalError(
    "usage",
    `a model with this tokenizer.json cannot be written as gguf: ${reason}; ${remedy}`,
  );
}
