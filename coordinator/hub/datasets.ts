// Which texts a run of this coordinator may learn: the ones that come with it and those that its organizer has brought. No paths:
// whoever has the organizer's link may make runs, and is not thereby allowed to read this computer's files.
import { basename } from "node:path";
import type { CorpusInfo } from "../corpora/types.ts";
import { CORPUS_PREFIX } from "../corpora/types.ts";
import { loadCorpus } from "../store/corpus.ts";
import type { DatasetChoice } from "../../peer/wire/hub.ts";

/** What comes with the packages, and what people call it. */
const BUILT_IN = [{ dataset: "moby-dick", name: "Moby Dick, by Herman Melville" }] as const;

/** How people call a way of cutting a text into tokens. */
const TOKENIZERS: Readonly<Record<string, string>> = { char: "characters", gpt2: "GPT-2's pieces of words" };

export class Datasets {
  readonly #corpora: () => CorpusInfo[];
  readonly #builtIn = new Map<string, Promise<DatasetChoice>>();

  /** @param corpora those that were brought, prepared or not */
  constructor(corpora: () => CorpusInfo[] = () => []) {
    this.#corpora = corpora;
  }

  /** What people call the text: a run may learn one that is a file, whose folder is nobody else's matter. */
  nameOf(dataset: string): string {
    const known = BUILT_IN.find((it) => it.dataset === dataset) ??
      this.#corpora().find(({ id }) => CORPUS_PREFIX + id === dataset);
    return known?.name ?? basename(dataset);
  }

  /** Those that a run can begin with now. */
  async list(): Promise<DatasetChoice[]> {
    const own = this.#corpora().filter(({ state }) => state === "ready").map(choiceOf);
    return [...await Promise.all(BUILT_IN.map((it) => this.#load(it))), ...own];
  }

  /** Read once: how many tokens it has is known only then. */
  #load({ dataset, name }: typeof BUILT_IN[number]): Promise<DatasetChoice> {
    const known = this.#builtIn.get(dataset);
    if (known !== undefined) return known;
    const loading = loadCorpus(dataset).then(({ tokens, vocab }) => ({
      ...{ dataset, name, tokenizer: TOKENIZERS["char"]!, tokens: tokens.length, vocabulary: vocab.length },
    }));
    loading.catch(() => this.#builtIn.delete(dataset));
    this.#builtIn.set(dataset, loading);
    return loading;
  }
}

function choiceOf({ id, name, tokenizer, tokens, vocabulary }: CorpusInfo): DatasetChoice {
  const cut = TOKENIZERS[tokenizer] ?? tokenizer;
  return { dataset: CORPUS_PREFIX + id, name, tokenizer: cut, tokens, vocabulary };
}
