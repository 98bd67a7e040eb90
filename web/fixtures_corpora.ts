// States of the organizer's texts: nothing yet, a file that is chosen, texts under way, ready and refused. Nothing here ships with the
// pages.
import type { CorpusInfo } from "../peer/wire/corpora.ts";
import type { Fixture } from "./fixtures_kinds.ts";
import { type CorporaModel, draftOf } from "./view_model_corpora.ts";

function text(part: Partial<CorpusInfo> & Pick<CorpusInfo, "id" | "name">): CorpusInfo {
  return {
    ...{ format: "text", tokenizer: "gpt2", column: null, bytes: 41_203_118, bytesTotal: 41_203_118 },
    ...{ bytesDone: 41_203_118, documents: 1, tokens: 9_120_330, vocabulary: 50_257, state: "ready" },
    ...{ error: null, usedBy: [] },
    ...part,
  };
}

const TEXTS: CorpusInfo[] = [
  text({ id: "0123456789abcdef", name: "letters of the town.txt", usedBy: ["Evening class"] }),
  text({
    ...{
      id: "1123456789abcdef",
      name: "a whole newspaper, year by year, with every issue that was ever scanned.parquet",
    },
    ...{ format: "parquet", column: "text", tokenizer: "char", documents: 21_903, vocabulary: 312 },
  }),
  text({
    id: "2123456789abcdef",
    name: "stories.jsonl",
    format: "jsonl",
    column: "body",
    state: "preparing",
    bytesDone: 13_100_000,
    tokens: 2_871_004,
    vocabulary: 0,
  }),
  text({
    id: "3123456789abcdef",
    name: "sermons.txt",
    state: "waiting",
    bytesDone: 0,
    tokens: 0,
    vocabulary: 0,
  }),
  text({
    id: "4123456789abcdef",
    name: "minutes.txt",
    state: "receiving",
    bytes: 6_100_000,
    bytesDone: 0,
    tokens: 0,
    vocabulary: 0,
  }),
  text({
    ...{
      id: "5123456789abcdef",
      name: "broken.jsonl",
      format: "jsonl",
      column: "text",
      state: "failed",
      tokens: 0,
      vocabulary: 0,
    },
    error: {
      code: "bad-corpus",
      message:
        '"broken.jsonl", line 1042: it has no field "text"; it has "body", "id": name one as the column',
    },
  }),
];

const limits = { bytes: 2 ** 31, tokenizerBytes: 2 ** 26 };
const tokenizers = [{ id: "00aa00aa00aa00aa", name: "town-words.json" }];

function state(name: string, model: Partial<CorporaModel>): Fixture {
  const answer = { corpora: [], tokenizers, limits };
  return {
    name: `texts-${name}`,
    page: "corpora",
    model: { answer, draft: null, sending: false, refusal: "", ...model },
  };
}

export const corpora: readonly Fixture[] = [
  state("none", {}),
  state("list", { answer: { corpora: TEXTS, tokenizers, limits } }),
  state("chosen", { draft: draftOf({ name: "stories.jsonl", size: 41_203_118 }) }),
  state("refused", {
    draft: {
      ...draftOf({ name: "stories.parquet", size: 3_000_000_000 }),
      tokenizer: "own",
      own: "words.json",
    },
    refusal: 'the tokenizer "words.json" cannot be used: number 5 is "b" and "a"',
  }),
];
