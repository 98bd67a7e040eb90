// Which tokens of a growing text the model reads, and at which positions: at most block_size of them, in pieces that go through
// a layer together. Pure, and shared by whoever writes alone and whoever has others write, so that both write the same text.
import { TEXT_ROWS_MAX } from "../wire/frame.ts";

/** Tokens that follow one another, the first at `position`; at position 0 everything read before is forgotten. */
export interface WindowPiece {
  position: number;
  tokens: number[];
}

/** Tokens that the model has read, oldest first. */
export type TextWindow = number[];

/** Forgets what was read and reads these tokens, of which there are fewer than a window holds or as many. */
export function readAnew(window: TextWindow, tokens: readonly number[]): WindowPiece[] {
  window.length = 0;
  const pieces: WindowPiece[] = [];
  for (let at = 0; at < tokens.length; at += TEXT_ROWS_MAX) {
    pieces.push(addTo(window, tokens.slice(at, at + TEXT_ROWS_MAX)));
  }
  return pieces;
}

/**
 * Reads one more token. When the window is full, its newer half is read again at positions 0.. first, so the model always sees
 * between block_size / 2 and block_size tokens at one extra pass per half window.
 */
export function readOn(window: TextWindow, token: number, blockSize: number): WindowPiece[] {
  const full = window.length === blockSize;
  const pieces = full ? readAnew(window, window.slice(blockSize - Math.floor(blockSize / 2))) : [];
  return [...pieces, addTo(window, [token])];
}

/** What a model reads of a text before its last token: as much as a window holds. */
export function windowOf(text: readonly number[], blockSize: number): number[] {
  return text.slice(-blockSize, -1);
}

function addTo(window: TextWindow, tokens: number[]): WindowPiece {
  const position = window.length;
  window.push(...tokens);
  return { position, tokens };
}
