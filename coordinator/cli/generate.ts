// `shoal generate`: continues a prompt with the weights of a checkpoint, on the CPU.
// No network, no GPU, nothing written to disk: text goes to stdout as it comes, notes to stderr.
import { ShoalError } from "../../peer/wire/errors.ts";
import { findCheckpoint } from "./checkpoint_path.ts";
import { generateLive } from "./generate_live.ts";
import { integerFlag, numberFlag, positional, requiredFlag, type VerbOptions } from "./options.ts";
import type { TextEnd, TextRequest } from "../http/text_protocol.ts";
import { STOPS_MAX } from "../http/completions_request.ts";
import { TextModel } from "./text_model.ts";

/** Enough for a page of text; more is a slip of the keyboard. */
const COUNT_MAX = 100_000;

export interface GenerateOutput {
  /** Data: the text as it comes, or one JSON line. */
  data(text: string): void;
  /** One line for people. */
  note(text: string): void;
}

/**
 * Writes the prompt and its continuation, piece by piece, or with --json one object {checkpoint, step, prompt, text,
 * finish_reason, prompt_tokens, tokens, seconds} at the end.
 * @throws {ShoalError} usage, bad-checkpoint, or bad-corpus for a prompt outside the vocabulary.
 */
export async function generate(options: VerbOptions, output: GenerateOutput): Promise<void> {
  positional(options, 0);
  const request = requestOf(options);
  const json = options.flags.json !== undefined;
  const { url, checkpoint } = options.flags;
  if (url !== undefined && checkpoint !== undefined) {
    throw new ShoalError("usage", "--url and --checkpoint are two ways to write; use one of them");
  }
  if (url !== undefined) return await generateLive(url, { request, json }, output);
  const path = await findCheckpoint(requiredFlag(options, "checkpoint"));
  const model = await TextModel.open(path);
  const begun = performance.now();
  const pieces = model.write(request);
  if (!json) {
    output.note(`step ${model.step} of ${path}`);
    output.data(request.prompt);
  }
  let text = "";
  const end = drain(pieces, (piece) => {
    text += piece;
    if (!json) output.data(piece);
  });
  const seconds = (performance.now() - begun) / 1000;
  const { reason: finish_reason, promptTokens: prompt_tokens, tokens } = end;
  if (json) {
    const { prompt } = request, { step } = model;
    const result = { checkpoint: path, step, prompt, text, finish_reason, prompt_tokens, tokens, seconds };
    return output.data(`${JSON.stringify(result)}\n`);
  }
  output.data("\n");
  const shown = `${tokens} tokens in ${seconds.toFixed(1)} s (${(tokens / seconds).toFixed(0)} per second)`;
  output.note(`${shown}${windowNote(end, model.spec.block_size)}`);
}

function drain(pieces: Generator<string, TextEnd, void>, take: (piece: string) => void): TextEnd {
  while (true) {
    const { done, value } = pieces.next();
    if (done) return value;
    take(value);
  }
}

/** Only said where it matters: a person should know why a text forgets its beginning. */
function windowNote({ promptTokens, tokens }: TextEnd, window: number): string {
  if (promptTokens > window) return `; of the prompt only the last ${window} tokens count (block_size)`;
  if (promptTokens + tokens <= window) return "";
  return `; the text is longer than the window of ${window} tokens (block_size), which slid along`;
}

function requestOf(options: VerbOptions): TextRequest & { prompt: string } {
  const { stop: last = "" } = options.flags;
  const stop = (options.repeated?.stop ?? [last]).filter((text) => text !== "");
  if (stop.length > STOPS_MAX) {
    throw new ShoalError("usage", `--stop is given ${stop.length} times; use up to ${STOPS_MAX}`);
  }
  const topP = numberFlag(options, "top_p", { absent: 1, min: 0, max: 1 });
  if (topP === 0) throw new ShoalError("usage", "--top_p is 0; use a number above 0, 1 for no limit");
  return {
    prompt: requiredFlag(options, "prompt"),
    count: integerFlag(options, "count", { absent: 200, min: 1, max: COUNT_MAX }),
    temperature: numberFlag(options, "temperature", { absent: 0.8, min: 0, max: 100 }),
    topK: integerFlag(options, "top_k", { absent: 0, min: 0, max: 1_000_000 }),
    topP,
    seed: integerFlag(options, "seed", { absent: 1337, min: 0, max: 0xffff_ffff }),
    stop,
    ...(options.flags.ignore_eos === undefined ? {} : { ignoreEos: true }),
  };
}
