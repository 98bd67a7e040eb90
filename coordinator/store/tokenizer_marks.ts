// Which of a tokenizer.json's tokens begin and end a text, and how it treats a text's beginning: what other programs want to be told
// beside the file itself. Pure. The file may come from anywhere; whoever uses this has parsed its JSON.

/** What tokenizers call the token that ends a text, the usual ones first. */
export const ENDS_OF_TEXT = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<|im_end|>"];
/** What they call the one that ends one's turn in a conversation: who writes a text stops there, too. */
const ENDS_OF_TURN = ["<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>"];
/** What they call the one that begins it, where no rule of theirs puts it there. */
const BEGINNINGS = ["<|begin_of_text|>", "<s>", "<bos>", "[CLS]"];
/** GPT-2 has one token for both. */
const BOTH = "<|endoftext|>";

/** A token outside the pairs and words that the tokenizer learned. */
export interface AddedToken {
  id: number;
  content: string;
  special: boolean;
  lstrip: boolean;
  rstrip: boolean;
  normalized: boolean;
  single_word: boolean;
}

export interface TextMarks {
  begin: AddedToken | null;
  end: AddedToken | null;
  /** All at which writing stops, `end` first. */
  ends: AddedToken[];
  /** The tokenizer itself puts these around a text that it is to go on from. */
  addsBegin: boolean;
  addsEnd: boolean;
}

/** Only tokens with a number and a name; others no library could use. */
export function addedTokensOf(json: unknown): AddedToken[] {
  const list: unknown = record(json).added_tokens;
  return (Array.isArray(list) ? list : []).flatMap((it) => {
    const { id, content, ...rest } = record(it);
    if (typeof id !== "number" || typeof content !== "string") return [];
    const flag = (name: string) => rest[name] === true;
    return [{
      ...{ id, content, special: flag("special"), lstrip: flag("lstrip"), rstrip: flag("rstrip") },
      ...{ normalized: flag("normalized"), single_word: flag("single_word") },
    }];
  });
}

/** @param json A parsed tokenizer.json. */
export function textMarks(json: unknown): TextMarks {
  const special = new Map(
    addedTokensOf(json).filter((it) => it.special).map((it) => [it.content, it] as const),
  );
  const first = (names: readonly string[]) => names.map((name) => special.get(name)).find((it) => it) ?? null;
  const { before, after } = templateOf(record(json).post_processor);
  const both = special.get(BOTH) ?? null;
  const begin = before.length > 0 ? special.get(before[0]!) ?? null : first(BEGINNINGS) ?? both;
  const end = after.length > 0 ? special.get(after[0]!) ?? null : first(ENDS_OF_TEXT);
  const named = [...ENDS_OF_TEXT, ...ENDS_OF_TURN].flatMap((name) => special.get(name) ?? []);
  const ends = [...new Set([...(end === null ? [] : [end]), ...named])];
  return { begin, end, ends, addsBegin: before.length > 0, addsEnd: after.length > 0 };
}

/** Names of the tokens that a post-processor puts before and after a single text. */
function templateOf(processor: unknown): { before: string[]; after: string[] } {
  const { type, processors, single } = record(processor);
  if (type === "Sequence" && Array.isArray(processors)) {
    const all = processors.map(templateOf);
    return { before: all.flatMap((it) => it.before), after: all.flatMap((it) => it.after) };
  }
  const before: string[] = [], after: string[] = [];
  if (type !== "TemplateProcessing" || !Array.isArray(single)) return { before, after };
  let seen = false;
  for (const part of single) {
    const { SpecialToken: token, Sequence: text } = record(part);
    if (text !== undefined) seen = true;
    const { id } = record(token);
    if (typeof id === "string") (seen ? after : before).push(id);
  }
  return { before, after };
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? value as Record<string, unknown> : {};
}
