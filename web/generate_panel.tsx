// "Try the model", bound to the coordinator: keeps what is typed, asks for a text, shows it as it comes, stops it. One text at a
// time. Nothing here is loaded before somebody opens it (generate_slot.tsx).
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { signal } from "@preact/signals";
import { refusalFrom } from "./api.ts";
import { Generate, type GenerateActions } from "./generate.tsx";
import { streamText } from "./generate_stream.ts";
import { type GenerateModel, generateView, NOTHING_WRITTEN, wishOf } from "./view_model_generate.ts";

/** At most four updates a second reach the page. */
const SHOW_EVERY_MS = 250;

export interface GenerateSource {
  base: string;
  token: string;
  /** A sentence for those who do not see the page. */
  announce(text: string): void;
}

/** What is written lives as long as the page, also while the panel is closed. */
const model = signal<GenerateModel>(NOTHING_WRITTEN);
let stopping = new AbortController();

export function GeneratePanel(source: GenerateSource) {
  const actions: GenerateActions = {
    type: (part) => learn({ form: { ...model.value.form, ...part } }),
    send: () => void write(source),
    stop: () => stopping.abort(),
  };
  return <Generate view={generateView(model.value)} actions={actions} />;
}

function learn(part: Partial<GenerateModel>): void {
  model.value = { ...model.value, ...part };
}

async function write({ base, token, announce }: GenerateSource): Promise<void> {
  const wish = wishOf(model.value.form);
  if (wish === null || !generateView(model.value).maySend) return;
  const seed = wish.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]!;
  const { signal } = stopping = new AbortController();
  const written = { prompt: wish.prompt, text: "", seed, step: null, tokens: null };
  learn({ phase: "asking", refusal: null, reason: null, written });
  const shown = new Shown((text) => learn({ phase: "writing", written: { ...written, text } }));
  try {
    const onText = (text: string) => shown.add(text);
    const { reason, ...facts } = await streamText({ ...wish, seed }, { base, token, signal, onText });
    learn({ phase: "done", reason, written: { ...written, text: shown.end(), ...facts } });
  } catch (error) {
    learn({ written: { ...written, text: shown.end() } });
    if (signal.aborted) learn({ phase: "stopped" });
    else learn({ phase: "failed", refusal: refusalFrom(error) });
  }
  announce(generateView(model.value).said?.text ?? "");
}

/** Pieces of a text, shown at a pace that a page can draw and a person can read. */
class Shown {
  readonly #show: (text: string) => void;
  #text = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(show: (text: string) => void) {
    this.#show = show;
  }

  add(piece: string): void {
    const first = this.#text === "";
    this.#text += piece;
    if (first) return this.#show(this.#text);
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.#show(this.#text);
    }, SHOW_EVERY_MS);
  }

  /** The whole text; nothing is shown any more. */
  end(): string {
    clearTimeout(this.#timer);
    return this.#text;
  }
}
