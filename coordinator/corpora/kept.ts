// What lies in a folder of prepared texts, as lists show it. Reads descriptions, never tokens; changes nothing. A damaged text is
// listed with what is wrong, so that somebody can delete it.
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { exists } from "../store/exists.ts";
import { describeCorpus } from "./prepared.ts";
import type { CorpusInfo } from "./types.ts";

/** What the list shows of a text on the disk; one that is damaged says what is wrong with it. */
export async function infoOf(folder: string, id: string): Promise<Omit<CorpusInfo, "usedBy">> {
  const blank = { id, name: id, format: "text" as const, tokenizer: "char", column: null, bytesTotal: null };
  const none = { bytes: 0, bytesDone: 0, documents: 0, tokens: 0, vocabulary: 0 };
  try {
    const { name, label, making, sourceBytes: bytes, documents, tokens, vocab } = await describeCorpus(
      folder,
      id,
    );
    const { format, column } = making;
    const counts = { bytes, bytesDone: bytes, documents, tokens, vocabulary: vocab.length };
    return { ...blank, name, tokenizer: label, format, column, ...counts, state: "ready", error: null };
  } catch (error) {
    const code = error instanceof ShoalError ? error.code : "internal";
    return { ...blank, ...none, state: "failed", error: { code, message: messageOf(error) } };
  }
}

/** Names in the folder that are texts' ids. */
export async function idsIn(folder: string): Promise<string[]> {
  const ids: string[] = [];
  if (!await exists(folder)) return ids;
  for await (const { name } of Deno.readDir(folder)) if (/^[0-9a-f]{16}$/.test(name)) ids.push(name);
  return ids.sort();
}
