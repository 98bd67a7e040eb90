// The buttons that take a checkpoint away as files for other programs. Draws a fixed list and reports presses.
// Not the formats themselves: the coordinator writes them (coordinator/export), and says which exist.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */

/** What a person recognises, the program that opens it, and what the coordinator calls it. */
const FORMATS = [
  { label: "Hugging Face", reader: "transformers", format: "hf", dtype: "f32" },
  { label: "GGUF", reader: "llama.cpp", format: "gguf", dtype: "f16" },
  { label: "GGUF, 8 bits", reader: "llama.cpp", format: "gguf", dtype: "q8_0" },
  { label: "ONNX", reader: "onnxruntime", format: "onnx", dtype: "f32" },
] as const;
/** Where only adapters were trained, the others hold the merged model. */
const ADAPTERS = [
  { label: "Adapters", reader: "PEFT", format: "peft", dtype: "f32" },
  { label: "Adapters, GGUF", reader: "llama.cpp", format: "gguf-lora", dtype: "f32" },
] as const;

export interface ExportActions {
  exportAs(checkpoint: string, format: string, dtype: string): void;
}

export function ExportButtons(
  { checkpoint: { name, adapters }, actions }: {
    checkpoint: { name: string; adapters: boolean };
    actions: ExportActions;
  },
) {
  return (
    <p class="files">
      <span>Take it away:</span>
      {[...FORMATS, ...(adapters ? ADAPTERS : [])].map(({ label, reader, format, dtype }) => (
        <button
          type="button"
          key={label}
          // What is seen comes first, so that it can be spoken.
          aria-label={`${label}: export ${name} for ${reader}`}
          onClick={() => actions.exportAs(name, format, dtype)}
        >
          {label}
        </button>
      ))}
    </p>
  );
}
