// Cuts a document into pieces of bounded size for a tokenizer, at places where it would cut anyway, so that the tokens are those of the
// whole document. Pure. Where the pieces end depends on the document alone, never on how it was read.

/** Characters that are encoded at once: enough to be quick, little enough for tokenizers whose effort grows faster than the text. */
export const PIECE_CHARS = 1 << 14;

/** Takes a document in parts and gives out its pieces. */
export class Pieces {
  #rest = "";

  /** Pieces that are complete with this text; all that is left if the document `ends` with it. */
  *push(text: string, ends: boolean): Generator<string, void, void> {
    const all = this.#rest + text;
    let from = 0;
    // A cut looks at the character behind it, so one more than a piece must be there.
    while (all.length - from > PIECE_CHARS + 1) {
      const to = cutBefore(all, from, from + PIECE_CHARS);
      yield all.slice(from, to);
      from = to;
    }
    if (ends && from < all.length) yield all.slice(from);
    this.#rest = ends ? "" : all.slice(from);
  }
}

/** The pieces of one text. */
export function piecesOf(text: string): Generator<string, void, void> {
  return new Pieces().push(text, true);
}

/**
 * Where a piece that begins at `from` ends, at most at `to`. Between a letter and a space before a letter every known tokenizer cuts,
 * too; else before white space, as GPT-2's does; else between two characters.
 */
function cutBefore(text: string, from: number, to: number): number {
  const least = from + Math.floor((to - from) / 2);
  for (let at = to; at > least; at--) {
    if (text[at] === " " && isLetter(text[at - 1]!) && isLetter(text[at + 1]!)) return at;
  }
  for (let at = to; at > least; at--) {
    if (isSpace(text[at]!) && !isSpace(text[at - 1]!)) return at;
  }
  const code = text.charCodeAt(to);
  return code >= 0xdc00 && code <= 0xdfff ? to - 1 : to;
}

function isLetter(char: string): boolean {
  return /\p{L}/u.test(char);
}

function isSpace(char: string): boolean {
  return /\s/.test(char);
}
