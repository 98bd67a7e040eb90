// The organizer's texts, bound to the coordinator: asks for the list, sends files, and tells its page when a text has become ready. It
// only reports what the coordinator says. Loaded for the organizer alone.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { signal } from "@preact/signals";
import { ask, refusalFrom } from "./api.ts";
import { Corpora, type CorporaActions } from "./corpora.tsx";
import type { CorporaAnswer } from "../peer/wire/corpora.ts";
import { type CorporaModel, corporaView, type CorpusDraft, draftOf, newsOf } from "./view_model_corpora.ts";

const PATH = "/api/corpora";
/** The list is asked for so often while something is under way. */
const BUSY_MS = 500;
/** Else: a run may have begun to use a text, or an organizer beside this one brought one. */
const IDLE_MS = 3000;

export interface CorporaBinding {
  token: string;
  /** The list of texts that a run can learn has changed. */
  onChange(): void;
  /** Shows a sentence for a while, and reads it out. */
  say(note: string): void;
}

/** The panel as a component without properties; it asks for the list at once. */
export function bindCorpora(options: CorporaBinding) {
  const desk = new Desk(options);
  const actions: CorporaActions = {
    choose: (file) => desk.choose(file),
    chooseTokenizer: (file) => desk.chooseTokenizer(file),
    learn: (part) => desk.change(part),
    send: () => void desk.send(),
    cancel: () => desk.cancel(),
    remove: (id) => void desk.remove(id),
  };
  void desk.refresh();
  return function BoundCorpora() {
    return <Corpora view={corporaView(desk.model.value)} actions={actions} />;
  };
}

class Desk {
  readonly model = signal<CorporaModel>({ answer: null, draft: null, sending: false, refusal: "" });
  readonly #options: CorporaBinding;
  #text: File | null = null;
  #tokenizer: File | null = null;
  /** The last question for the list had no answer. */
  #lost = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: CorporaBinding) {
    this.#options = options;
  }

  choose(file: File): void {
    this.#text = file;
    this.#tokenizer = null;
    this.#learn({ draft: draftOf(file), refusal: "" });
  }

  chooseTokenizer(file: File): void {
    this.#tokenizer = file;
    this.change({ own: file.name });
  }

  change(part: Partial<CorpusDraft>): void {
    const { draft } = this.model.value;
    if (draft !== null) this.#learn({ draft: { ...draft, ...part } });
  }

  cancel(): void {
    this.#text = this.#tokenizer = null;
    this.#learn({ draft: null, refusal: "" });
  }

  async refresh(): Promise<void> {
    clearTimeout(this.#timer);
    try {
      const before = this.model.value.answer;
      const answer = await (await this.#ask("")).json() as CorporaAnswer;
      this.#learn({ answer, ...(this.#lost ? { refusal: "" } : {}) });
      this.#lost = false;
      const news = before === null ? "" : newsOf(before.corpora, answer.corpora);
      if (news !== "") this.#options.say(news);
      if (before !== null && readyOf(answer) !== readyOf(before)) this.#options.onChange();
    } catch (error) {
      this.#lost = true;
      this.#learn({ refusal: refusalFrom(error).message });
    }
    const { sending, answer } = this.model.value;
    const busy = answer?.corpora.some(({ state }) => state !== "ready" && state !== "failed") === true;
    this.#refreshLater(sending || busy ? BUSY_MS : IDLE_MS);
  }

  async send(): Promise<void> {
    const { draft, sending } = this.model.value, text = this.#text;
    if (draft === null || text === null || sending) return;
    this.#learn({ sending: true });
    this.#refreshLater(BUSY_MS);
    const done = await this.#wish(async () => {
      const tokenizer = draft.tokenizer === "own" ? await this.#bringTokenizer() : draft.tokenizer;
      const { name, format, column } = draft;
      const query = new URLSearchParams({ name, format, column, tokenizer });
      await this.#ask(`?${query}`, { method: "POST", body: text, signal: null });
    });
    this.#learn({ sending: false });
    if (done) this.cancel();
    await this.refresh();
  }

  async remove(id: string): Promise<void> {
    await this.#wish(() => this.#ask(`/${encodeURIComponent(id)}`, { method: "DELETE" }));
    await this.refresh();
  }

  async #bringTokenizer(): Promise<string> {
    const query = new URLSearchParams({ name: this.#tokenizer?.name ?? "" });
    const init = { method: "POST", body: this.#tokenizer, signal: null };
    return (await (await this.#ask(`/tokenizers?${query}`, init)).json() as { tokenizer: string }).tokenizer;
  }

  /** Shows why a wish could not be fulfilled; whether it could. */
  async #wish(carryOut: () => Promise<unknown>): Promise<boolean> {
    const refusal = await carryOut().then(() => "", (error) => refusalFrom(error).message);
    this.#learn({ refusal });
    if (refusal !== "") this.#options.say(refusal);
    return refusal === "";
  }

  #ask(path: string, init?: RequestInit): Promise<Response> {
    return ask(PATH + path, this.#options.token, init);
  }

  #refreshLater(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.refresh(), ms);
  }

  #learn(part: Partial<CorporaModel>): void {
    this.model.value = { ...this.model.value, ...part };
  }
}

function readyOf({ corpora }: CorporaAnswer): string {
  return corpora.filter(({ state }) => state === "ready").map(({ id }) => id).join();
}
