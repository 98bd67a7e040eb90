// Judges what somebody wants of a new run, field by field, so that a form can say what is wrong with each while it is filled in.
// Pure but for the list of texts, which its caller brings. What passes here can be planned and trained.
import {
  checkCorpus,
  CONFIG_KEYS,
  DEFAULT_CONFIG,
  isConfigKey,
  keyProblem,
  readConfig,
} from "../../peer/model/config.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { ConfigWish, DatasetChoice, FieldError } from "../../peer/wire/hub.ts";
import { nearest } from "../../peer/model/nearest.ts";
import type { RunConfig } from "../../peer/wire/run.ts";

export type Judged =
  | { ok: true; config: RunConfig; dataset: DatasetChoice }
  | { ok: false; errors: FieldError[] };

/** @param defaults what counts where the wish says nothing, before Shoal's own */
export function judge(
  wish: ConfigWish,
  datasets: readonly DatasetChoice[],
  defaults: ConfigWish = {},
): Judged {
  const errors = Object.entries(wish).flatMap(([key, value]) => keyError(key, value));
  if (errors.length > 0) return { ok: false, errors };
  try {
    const config = readConfig({ ...defaults, ...wish });
    const dataset = datasets.find((it) => it.dataset === config.dataset);
    if (dataset === undefined) {
      return refused("dataset", "there is no such text here; choose one of the list");
    }
    checkCorpus(config, dataset.tokens);
    return { ok: true, config, dataset };
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    return refused(fieldOf(error), messageOf(error).replace(/^configuration: /, ""));
  }
}

/** One answer for whoever wants only one. */
export function firstError(errors: readonly FieldError[]): string {
  return errors.map(({ field, message }) => field === "" ? message : `${field}: ${message}`).join("; ");
}

/** How a text is cut is decided when it is brought here, and these may name files. */
const OF_THE_TEXT: readonly string[] = ["tokenizer", "column"];

function keyError(key: string, value: unknown): FieldError[] {
  if (OF_THE_TEXT.includes(key) && value !== DEFAULT_CONFIG[key as keyof RunConfig]) {
    return [{ field: key, message: "a text here has its tokenizer already; leave this out" }];
  }
  if (!isConfigKey(key)) {
    const shown = key.slice(0, 40);
    return [{
      field: shown,
      message: `unknown key; the nearest known one is ${nearest(shown, CONFIG_KEYS)}`,
    }];
  }
  const message = keyProblem(key, value);
  return message === null ? [] : [{ field: key, message }];
}

/** Sentences about several keys begin with the one that should be changed. */
function fieldOf(error: ShoalError): string {
  if (error.code === "bad-corpus") return "block_size";
  const [first = ""] = /[a-z0-9_]+/.exec(error.message.replace(/^configuration: /, "")) ?? [];
  return isConfigKey(first) ? first : "";
}

function refused(field: string, message: string): Judged {
  return { ok: false, errors: [{ field, message }] };
}
