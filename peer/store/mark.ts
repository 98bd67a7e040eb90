// The mark by which a coordinator knows this computer again: random, kept beside the other notes, told to nobody else. It says
// nothing about the computer, and goes with everything else when its owner withdraws.
import type { Notes } from "./notes.ts";

const NAME = "mark";
const BYTES = 16;
const SHAPE = /^[A-Za-z0-9_-]{16,64}$/;

/** The kept one, or a fresh one that is kept from now on, as long as this place keeps anything. */
export async function markOf(notes: Notes): Promise<string> {
  const kept = await notes.get(NAME);
  if (kept !== null && SHAPE.test(kept)) return kept;
  const random = crypto.getRandomValues(new Uint8Array(BYTES));
  const mark = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
  await notes.set(NAME, mark);
  return mark;
}
