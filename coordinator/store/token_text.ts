// One token of a tokenizer.json as text, for lists of tokens: a word's piece with its space, or its bytes where they are no whole
// character. Pure. Texts are decoded by the tokenizer itself (text_tokenizer.ts).

/** GPT-2's characters of bytes: themselves where they print, else from here on. */
const SUBSTITUTES_FROM = 0x100;

/** @param name as the tokenizer has it; @param byteLevel one character of the name is one byte */
export function tokenText(name: string, byteLevel: boolean): string {
  if (byteLevel) {
    const bytes = Array.from(name, (char) => BYTES.get(char));
    return bytes.every((byte) => byte !== undefined) ? textOfBytes(Uint8Array.from(bytes)) : name;
  }
  const single = /^<0x([0-9A-Fa-f]{2})>$/.exec(name);
  if (single !== null) return textOfBytes(Uint8Array.of(parseInt(single[1]!, 16)));
  return name.replaceAll("\u2581", " ");
}

/** OpenAI's way to write bytes that are no text. */
function textOfBytes(bytes: Uint8Array<ArrayBuffer>): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return `bytes:${Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("")}`;
  }
}

const BYTES = byteNames();

function byteNames(): Map<string, number> {
  const names = new Map<string, number>();
  let next = SUBSTITUTES_FROM;
  for (let byte = 0; byte < 256; byte++) {
    const prints = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    names.set(String.fromCodePoint(prints ? byte : next++), byte);
  }
  return names;
}
