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

export interface ExportActions {
  exportAs(checkpoint: string, format: string, dtype: string): void;
}

export function ExportButtons({ checkpoint, actions }: { checkpoint: string; actions: ExportActions }) {
  return (
    <p class="files">
      <span>Take it away:</span>
      {FORMATS.map(({ label, reader, format, dtype }) => (
        <button
          type="button"
          key={label}
          // What is seen comes first, so that it can be spoken.
          aria-label={`${label}: export ${checkpoint} for ${reader}`}
          onClick={() => actions.exportAs(checkpoint, format, dtype)}
        >
          {label}
        </button>
      ))}
    </p>
  );
}
