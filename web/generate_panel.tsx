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
  /** The run has peers that may write. */
  live: boolean;
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
  return <Generate view={generateView({ ...model.value, live: source.live })} actions={actions} />;
}

function learn(part: Partial<GenerateModel>): void {
  model.value = { ...model.value, ...part };
}

async function write({ base, token, live, announce }: GenerateSource): Promise<void> {
  learn({ live });
  const wish = wishOf(model.value);
  if (wish === null || !generateView(model.value).maySend) return;
  const seed = wish.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]!;
  const { signal } = stopping = new AbortController();
  const written = { prompt: wish.prompt, text: "", seed, step: null, live: null, tokens: null };
  learn({ phase: "asking", refusal: null, reason: null, written });
  const shown = new Shown((text, perS) => {
    // A checkpoint's pieces hold as many tokens as it wrote meanwhile; the peers' hold one.
    learn({ phase: "writing", written: { ...written, text, tokensPerS: wish.live ? perS : null } });
  });
  try {
    const onText = (text: string) => shown.add(text);
    const { reason, ...facts } = await streamText({ ...wish, seed }, { base, token, signal, onText });
    const tokensPerS = wish.live && facts.tokens !== null ? facts.tokens / shown.seconds : null;
    learn({ phase: "done", reason, written: { ...written, text: shown.end(), ...facts, tokensPerS } });
  } catch (error) {
    learn({ written: { ...written, text: shown.end() } });
    if (signal.aborted) learn({ phase: "stopped" });
    else learn({ phase: "failed", refusal: refusalFrom(error) });
  }
  announce(generateView(model.value).said?.text ?? "");
}

/** Pieces of a text, shown at a pace that a page can draw and a person can read. */
class Shown {
  readonly #show: (text: string, piecesPerS: number | null) => void;
  readonly #askedAt = performance.now();
  #begunAt = 0;
  #pieces = 0;
  #text = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(show: (text: string, piecesPerS: number | null) => void) {
    this.#show = show;
  }

  add(piece: string): void {
    const first = this.#text === "";
    this.#text += piece;
    this.#pieces++;
    if (first) {
      this.#begunAt = performance.now();
      return this.#show(this.#text, null);
    }
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.#show(this.#text, (this.#pieces - 1) / (performance.now() - this.#begunAt) * 1000);
    }, SHOW_EVERY_MS);
  }

  /** Since it was asked for. */
  get seconds(): number {
    return (performance.now() - this.#askedAt) / 1000;
  }

  /** The whole text; nothing is shown any more. */
  end(): string {
    clearTimeout(this.#timer);
    return this.#text;
  }
}
