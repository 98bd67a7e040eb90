// The texts that a coordinator keeps for its runs, as its page sees them: their list, how far one is prepared, what is wrong with it.
// Types only. A prepared text never changes: whoever names its id gets the same tokens for ever.

/** `text`: the whole file is one document. `jsonl`: one JSON object a line. `parquet`: one string column. */
export type CorpusFormat = "text" | "jsonl" | "parquet";

/** `receiving`: its bytes are coming in. `waiting`: another text is prepared first. `failed`: see `error`. */
export type CorpusState = "receiving" | "waiting" | "preparing" | "ready" | "failed";

export interface CorpusInfo {
  /** A run takes the text by the data set's name `corpus:<id>`. 16 hexadecimal digits; a text that is not ready has one, too. */
  id: string;
  name: string;
  format: CorpusFormat;
  /** `char`, `gpt2`, or the name of the tokenizer.json that was given. */
  tokenizer: string;
  /** Field or column that the text is in; null for a plain text. */
  column: string | null;
  /** Bytes of the source that have arrived. */
  bytes: number;
  /** Bytes that the source was announced with; null if it was not said. */
  bytesTotal: number | null;
  /** Bytes of the source that have become tokens. */
  bytesDone: number;
  documents: number;
  tokens: number;
  /** Tokens that the tokenizer has, the filled-up ones included; 0 until it is known. */
  vocabulary: number;
  state: CorpusState;
  /** Why it failed, with the line where there are lines. */
  error: { code: string; message: string } | null;
  /** Runs that use it, told by whoever keeps the runs; such a text is not deleted. */
  usedBy: string[];
}

/** A tokenizer.json that was brought; an upload names it by its id. */
export interface TokenizerInfo {
  id: string;
  name: string;
}

/** What GET /api/corpora answers. */
export interface CorporaAnswer {
  corpora: CorpusInfo[];
  tokenizers: TokenizerInfo[];
  /** Most that an upload may have. */
  limits: { bytes: number; tokenizerBytes: number };
}
