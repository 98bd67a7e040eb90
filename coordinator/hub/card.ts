// What a coordinator of several runs knows of a run beside the run's own log: its name, who runs it, whether it is put away.
// One small file in the run's folder. A folder without one is a run, too: its name is the folder's.
import { join } from "node:path";
import * as v from "valibot";
import { RUN_NAME_CHARS_MAX } from "../../peer/wire/hub.ts";

const CARD_NAME = "run.json";
/** Beyond it the file is not ours. */
const FILE_BYTES_MAX = 1 << 16;

const TEXT = v.pipe(v.string(), v.trim(), v.regex(/^\P{C}*$/u), v.maxLength(RUN_NAME_CHARS_MAX));

const CARD = v.object({
  name: v.pipe(TEXT, v.minLength(1)),
  operator: TEXT,
  listed: v.boolean(),
  archived: v.boolean(),
  /** Whoever has the join link may write text with the model. */
  publicText: v.optional(v.boolean(), false),
  /** It was ended only because its coordinator was, which opens it again when it starts. */
  interrupted: v.optional(v.boolean(), false),
  /** ms since 1970. */
  createdAt: v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(Number.MAX_SAFE_INTEGER)),
});

export type RunCard = v.InferOutput<typeof CARD>;

/** The folder's card; a missing or damaged one is replaced by what can be known without it. */
export function readCard(folder: string, absent: RunCard): RunCard {
  const path = join(folder, CARD_NAME);
  try {
    if (Deno.statSync(path).size > FILE_BYTES_MAX) return absent;
    const parsed = v.safeParse(CARD, JSON.parse(Deno.readTextFileSync(path)));
    return parsed.success ? parsed.output : absent;
  } catch {
    return absent;
  }
}

/** Written beside and renamed, so that a crash leaves the old one. */
export function writeCard(folder: string, card: RunCard): void {
  const path = join(folder, CARD_NAME);
  Deno.writeTextFileSync(`${path}.new`, JSON.stringify(card, null, 2));
  Deno.renameSync(`${path}.new`, path);
}
