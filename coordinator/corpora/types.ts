// What the coordinator's other parts know of its texts: the list, and how a run's configuration names one. What the page sees as well is
// peer/wire/corpora.ts.
import type { CorpusInfo } from "../../peer/wire/corpora.ts";

export type { CorpusFormat, CorpusInfo, CorpusState } from "../../peer/wire/corpora.ts";

/** The texts of a coordinator that has several runs. */
export interface CorpusList {
  listCorpora(): CorpusInfo[];
}

/** A run's configuration names a prepared text with this and its id. */
export const CORPUS_PREFIX = "corpus:";

/** The id in a data set's name; null if the name means something else. */
export function corpusIdOf(dataset: string): string | null {
  const id = dataset.startsWith(CORPUS_PREFIX) ? dataset.slice(CORPUS_PREFIX.length) : "";
  return /^[0-9a-f]{16}$/.test(id) ? id : null;
}
