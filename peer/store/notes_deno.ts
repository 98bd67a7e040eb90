// Notes as files of the state folder, beside the numbered folders of the peers that share it. One file a note.
import { join } from "node:path";
import { SafeNotes } from "./notes.ts";
import { hashBytes } from "../exact/chunk_hashes.ts";

/** Notes in `root`, which is made if needed. Two peers that write one note at a time leave one of both. */
export function openDenoNotes(root: string): SafeNotes {
  // A note's name may contain anything, such as an adapter's; its hash is a safe name.
  const path = (name: string) => join(root, `note-${hashBytes(new TextEncoder().encode(name))}.txt`);
  return new SafeNotes({
    async get(name) {
      try {
        return await Deno.readTextFile(path(name));
      } catch (error) {
        if (error instanceof Deno.errors.NotFound) return null;
        throw error;
      }
    },
    async set(name, text) {
      await Deno.mkdir(root, { recursive: true });
      const half = `${path(name)}.${Deno.pid}`;
      await Deno.writeTextFile(half, text);
      await Deno.rename(half, path(name));
    },
  });
}
