// A tokenizer.json of SentencePiece's pairs (Llama 2's kind: spaces are low lines, what has no piece becomes bytes) as llama.cpp wants to be
// told of it: tokens with kinds and scores. Pure. llama.cpp joins any two pieces that are a piece together, the best scored first;
// a tokenizer.json lists the joints that it makes. Only where both come to the same is anything written.
import { addedTokensOf, textMarks } from "../store/tokenizer_marks.ts";
import { mergesOf, record, TOKEN_KIND, unfit } from "./tokenizer_parts.ts";

export interface SentencePieces {
  /** Names by number, one per row of the embedding. */
  tokens: readonly string[];
  /** TOKEN_KIND of each. */
  kinds: readonly number[];
  /** Higher is joined earlier. */
  scores: readonly number[];
  /** A text begins as if there were a space before it. */
  spaceBefore: boolean;
  begin: number;
  end: number;
  unknown: number | null;
  addsBegin: boolean;
  addsEnd: boolean;
}

/** What SentencePiece writes for a space. */
const SPACE = "\u2581";
const BYTE = /^<0x[0-9A-F]{2}>$/;
const BYTES = 256;

/** Whether a tokenizer.json is of this kind at all. */
export function isSentencePieces(json: unknown): boolean {
  const { type, byte_fallback } = record(record(json).model);
  return type === "BPE" && byte_fallback === true;
}

/**
 * @param json A parsed tokenizer.json. @param vocab Names by number, as the checkpoint has them.
 * @throws {ShoalError} usage for a tokenizer that llama.cpp would not follow
 */
export function sentencePiecesOf(json: unknown, vocab: readonly string[]): SentencePieces {
  const model = record(record(json).model), spaceBefore = spacesOf(record(json));
  const ids = record(model.vocab), added = addedTokensOf(json), marks = textMarks(json);
  const kinds = vocab.map((): number => TOKEN_KIND.unused), tokens = [...vocab];
  const set = (name: string, id: number, kind: number) => {
    if (!(Number.isInteger(id) && id >= 0 && id < tokens.length)) {
      throw unfit(`token ${JSON.stringify(name).slice(0, 60)} has no row in the model`);
    }
    [tokens[id], kinds[id]] = [name, kind];
  };
  for (const [name, id] of Object.entries(ids)) {
    set(name, Number(id), BYTE.test(name) ? TOKEN_KIND.byte : TOKEN_KIND.normal);
  }
  if (kinds.filter((kind) => kind === TOKEN_KIND.byte).length !== BYTES) {
    throw unfit("it has no token for each byte");
  }
  for (const { id, content, special } of added) {
    set(content, id, special ? TOKEN_KIND.control : TOKEN_KIND.own);
  }
  const unknown = typeof model.unk_token === "string" ? ids[model.unk_token] : undefined;
  if (typeof unknown === "number") kinds[unknown] = TOKEN_KIND.unknown;
  if (marks.end === null) throw unfit("it has no token that ends a text, which llama.cpp cannot do without");
  return {
    ...{ tokens, kinds, spaceBefore },
    scores: scoresOf(model, { ids, kinds, count: tokens.length }),
    ...{ begin: marks.begin?.id ?? marks.end.id, end: marks.end.id },
    ...{ unknown: typeof unknown === "number" ? unknown : null },
    ...{ addsBegin: marks.addsBegin, addsEnd: marks.addsEnd },
  };
}

/**
 * What becomes of spaces: low lines, with one before a text or without. A Metaspace puts none before a text that begins with a space,
 * where llama.cpp puts one more, as it does for the models of its own converter.
 * @throws {ShoalError} usage for anything else
 */
function spacesOf({ normalizer, pre_tokenizer: pre }: Record<string, unknown>): boolean {
  const { type, normalizers } = record(normalizer);
  const steps = type === "Sequence" && Array.isArray(normalizers)
    ? normalizers.map(record)
    : [record(normalizer)];
  if (pre === null || pre === undefined) {
    const prepends = steps.length === 2 && steps[0]?.type === "Prepend" && steps[0].prepend === SPACE;
    const last = steps.at(-1);
    const replaces = last?.type === "Replace" && record(last.pattern).String === " " &&
      last.content === SPACE;
    if (replaces && (prepends || steps.length === 1)) return prepends;
  }
  const meta = record(pre);
  const whole = meta.type === "Metaspace" && meta.replacement === SPACE && meta.split === false;
  if (whole && type === undefined) {
    const scheme = meta.prepend_scheme ?? (meta.add_prefix_space === false ? "never" : "always");
    return scheme !== "never";
  }
  throw unfit("llama.cpp does not know what it makes of spaces");
}

/**
 * The place of the first joint that makes a token, counted down. All joints of one token must follow one another, and be all that
 * there can be.
 */
function scoresOf(
  model: Record<string, unknown>,
  { ids, kinds, count }: { ids: Record<string, unknown>; kinds: readonly number[]; count: number },
): number[] {
  if (model.ignore_merges === true) throw unfit("its ignore_merges is not what llama.cpp takes for granted");
  const scores = Array.from({ length: count }, () => 0), ways = new Map<string, number>();
  let last = "";
  mergesOf(model).forEach((pair, rank) => {
    const made = pair.replace(" ", ""), id = ids[made];
    if (typeof id !== "number") throw unfit(`the pair ${JSON.stringify(pair).slice(0, 60)} makes no token`);
    if (made !== last && ways.has(made)) {
      throw unfit(`it makes ${JSON.stringify(made).slice(0, 60)} early and late`);
    }
    if (made !== last) scores[id] = -rank - 1;
    ways.set(made, (ways.get(made) ?? 0) + 1);
    last = made;
  });
  for (const [name, id] of Object.entries(ids)) {
    // Others are not made of pieces.
    if (kinds[Number(id)] !== TOKEN_KIND.normal || waysOf(name, ids) === (ways.get(name) ?? 0)) continue;
    throw unfit(`llama.cpp would join ${JSON.stringify(name).slice(0, 60)} in more ways than it does`);
  }
  return scores;
}

/** In how many ways a token is two tokens. */
function waysOf(name: string, ids: Record<string, unknown>): number {
  const chars = [...name];
  let count = 0;
  for (let i = 1; i < chars.length; i++) {
    const [left, right] = [chars.slice(0, i).join(""), chars.slice(i).join("")];
    if (Object.hasOwn(ids, left) && Object.hasOwn(ids, right)) count++;
  }
  return count;
}
