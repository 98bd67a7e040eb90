// The runs page, bound to its coordinator: polls the list, sends orders, keeps the form and asks what it would take while it is
// filled in. It only reports what the coordinator says.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { effect, signal } from "@preact/signals";
import { type ComponentType, render } from "preact";
import { refusalFrom, tokenOf } from "./api.ts";
import { poll } from "./pace.ts";
import { Runs, type RunsActions } from "./runs.tsx";
import { RunsApi } from "./runs_api.ts";
import type { CreateActions } from "./runs_create.tsx";
import type { HubRun } from "../peer/wire/hub.ts";
import { clonedForm, type CreateModel, emptyForm, estimateWish, runWish } from "./view_model_create.ts";
import { type RunsModel, runsScreen } from "./view_model_runs.ts";

/** Long enough to read a sentence twice. */
const NOTE_SHOWN_MS = 8000;
/** A pause in typing after which an estimate is worth asking for. */
const DEBOUNCE_MS = 300;

const api = new RunsApi(tokenOf(location.hash));
const model = signal<RunsModel>({ list: null, refusal: null, note: "" });
/** The form; null while it is closed. */
const draft = signal<CreateModel | null>(null);
const Form = signal<ComponentType<{ model: CreateModel; actions: CreateActions }> | null>(null);
/** What the organizer's runs learn from; null until it is known that this is the organizer. */
const Texts = signal<ComponentType | null>(null);
let asked = 0;
let textsAsked = false;
let waiting: ReturnType<typeof setTimeout> | undefined;

function learn(part: Partial<RunsModel>): void {
  model.value = { ...model.value, ...part };
}

async function askList(): Promise<"ok" | "failed" | "stop"> {
  try {
    learn({ list: await api.runs(), refusal: null });
    if (model.value.list?.admin === true) void openTexts();
    return "ok";
  } catch (error) {
    const refusal = refusalFrom(error);
    learn({ refusal });
    return refusal.code === "bad-token" ? "stop" : "failed";
  }
}

/** Once; a text that has become ready may be chosen in an open form. */
async function openTexts(): Promise<void> {
  if (textsAsked) return;
  textsAsked = true;
  const { bindCorpora } = await import("./corpora_panel.tsx");
  Texts.value = bindCorpora({ token: tokenOf(location.hash), say, onChange: () => void askForm() });
}

async function askForm(): Promise<void> {
  const form = draft.value === null ? null : await api.form().catch(() => null);
  if (form !== null && draft.value !== null) draft.value = { ...draft.value, form };
}

/** Shows a sentence for a while, unless another one takes its place. */
function say(note: string): void {
  learn({ note });
  setTimeout(() => model.value.note === note && learn({ note: "" }), NOTE_SHOWN_MS);
}

async function order(done: string, carryOut: () => Promise<HubRun[]>): Promise<void> {
  try {
    learn({ list: { admin: true, runs: await carryOut() } });
    say(done);
  } catch (error) {
    say(`That failed: ${refusalFrom(error).message}`);
  }
}

async function openForm(fill: () => Promise<CreateModel>): Promise<void> {
  draft.value = emptyForm(null);
  try {
    const [{ CreateForm }, filled] = await Promise.all([import("./runs_create.tsx"), fill()]);
    Form.value = CreateForm;
    draft.value = filled;
    askEstimate(0);
  } catch (error) {
    draft.value = null;
    say(`That failed: ${refusalFrom(error).message}`);
  }
}

function change(part: Partial<CreateModel>): void {
  if (draft.value === null) return;
  draft.value = { ...draft.value, ...part, refusal: "" };
  if (part.values !== undefined || part.offer !== undefined || part.gflops !== undefined) askEstimate();
}

/** Only the answer to the newest question counts. */
function askEstimate(afterMs = DEBOUNCE_MS): void {
  const number = ++asked;
  clearTimeout(waiting);
  if (draft.value !== null) draft.value = { ...draft.value, asking: true };
  waiting = setTimeout(() => void settleEstimate(number), afterMs);
}

async function settleEstimate(number: number): Promise<void> {
  const wish = draft.value === null ? null : estimateWish(draft.value);
  const answer = wish === null ? { answer: null } : await api.estimate(wish).then(
    (it) => ({ answer: it }),
    (error) => ({ refusal: refusalFrom(error).message }),
  );
  if (number === asked && draft.value !== null) draft.value = { ...draft.value, asking: false, ...answer };
}

async function send(): Promise<void> {
  const form = draft.value;
  if (form === null || form.sending) return;
  if (form.name.trim() === "") {
    draft.value = { ...form, refusal: "A run needs a name." };
    return document.getElementById("run-name")?.focus();
  }
  draft.value = { ...form, sending: true, refusal: "" };
  try {
    const { runs } = await api.create(runWish(form));
    learn({ list: { admin: true, runs } });
    draft.value = null;
    say(`${form.name.trim()} is open. Send its join link to those who lend computers.`);
  } catch (error) {
    draft.value = { ...draft.value ?? form, sending: false, refusal: refusalFrom(error).message };
  }
}

async function copy(link: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(link);
    say("Link copied.");
  } catch {
    say("This browser does not let the page copy; select the link and press Ctrl+C.");
  }
}

const actions: RunsActions = {
  archive: (id) => void order("It is being put away.", () => api.archive(id)),
  open: (id) => void order("It is open.", () => api.open(id)),
  list: (id, listed) =>
    void order(listed ? "Everybody sees it now." : "It is hidden now.", () => api.list(id, listed)),
  remove: (id, name) => void order("It is deleted.", () => api.remove(id, name)),
  create: () => void openForm(async () => emptyForm(await api.form())),
  clone: (id, name) =>
    void openForm(async () => {
      // The list of texts has this one only once it is taken over.
      const publicText = model.value.list?.runs.find((run) => run.id === id)?.publicText ?? false;
      const [config, text] = await Promise.all([api.config(id), api.text(id)]);
      return clonedForm(await api.form(), { id, name, publicText }, { ...config, ...text });
    }),
  copy: (link) => void copy(link),
  reload: () => location.reload(),
};

const formActions: CreateActions = {
  learn: change,
  send: () => void send(),
  cancel: () => (draft.value = null),
};

function App() {
  const screen = runsScreen(model.value);
  const Shown = Form.value, Panel = Texts.value;
  return (
    <Runs screen={screen} actions={actions} texts={Panel !== null && <Panel />}>
      {draft.value !== null && Shown !== null
        ? <Shown model={draft.value} actions={formActions} />
        : undefined}
    </Runs>
  );
}

addEventListener("hashchange", () => location.reload());
render(<App />, document.getElementById("app") as HTMLElement);
effect(() => void (document.title = runsScreen(model.value).documentTitle));
void poll(askList);
