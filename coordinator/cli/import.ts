// `shoal import`: a Llama or GPT-2 in Hugging Face's layout, on disk or at an address, becomes a run's first checkpoint, which
// `shoal resume` fine-tunes and the other verbs use. Reads the model's files, writes one folder.
import { resolve } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { importModel } from "../import/import_model.ts";
import { isAddress } from "../import/model_url.ts";
import { positional, requiredFlag, type VerbOptions } from "./options.ts";
import { compact, progressBar } from "./report.ts";

export interface ImportOutput {
  data(text: string): void;
  note(text: string): void;
  /** Shows a line in place of the one before; null where there is no terminal. */
  progress: ((text: string) => void) | null;
}

/** @throws {ShoalError} usage, bad-model, bad-config or storage-full; then nothing was written. */
export async function runImport(options: VerbOptions, output: ImportOutput): Promise<void> {
  const from = positional(options, 1);
  if (from === undefined) {
    throw new ShoalError(
      "usage",
      "the model is missing; name its folder, its address or its model.safetensors",
    );
  }
  const out = resolve(requiredFlag(options, "out"));
  const imported = await importModel({
    ...{ from: isAddress(from) ? from : resolve(from), out, config: options.config },
    ...(options.flags.adapter === undefined ? {} : { adapter: resolve(options.flags.adapter) }),
    onProgress: (done, of) => output.progress?.(done < of ? progressBar(done, of) : ""),
  });
  const { path, spec, config, params, tokenizer } = imported;
  if (options.flags.json !== undefined) {
    return output.data(`${JSON.stringify({ checkpoint: path, params, tokenizer, spec })}\n`);
  }
  output.data(`${path}\n`);
  const shape = `${spec.n_layer} layers, ${compact(params)} parameters, window of ${spec.block_size} tokens`;
  output.note(`${shape}; tokenizer: ${tokenizer}`);
  // Whoever may be asked by this computer need not be open to those of the peers, so that is for the operator to say.
  const also = isAddress(from) ? `, with --base_url ${from} if peers may fetch from there, too` : "";
  output.note(
    `fine-tune it with: shoal resume ${out} --dataset FILE --max_iters ${config.max_iters}${also}`,
  );
}
