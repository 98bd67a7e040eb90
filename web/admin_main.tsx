// The admin page, bound to its coordinator: polls the status, sends orders, fetches checkpoints.
// It only reports what the coordinator says; an order shows its effect when the next status confirms it.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { Admin, type AdminActions } from "./admin.tsx";
import { Api, refusalFrom, tokenOf } from "./api.ts";
import { poll } from "./pace.ts";
import { type AdminModel, adminScreen } from "./view_model_admin.ts";

/** The browser needs the object's address until it has begun the download. */
const RELEASE_AFTER_MS = 60_000;

/** Long enough to read a sentence twice. */
const NOTE_SHOWN_MS = 8000;

const token = tokenOf(location.hash);
const api = new Api(token);
const model = signal<AdminModel>({ status: null, refusal: null, note: "" });

function learn(part: Partial<AdminModel>): void {
  model.value = { ...model.value, ...part };
}

async function ask(): Promise<"ok" | "failed" | "stop"> {
  try {
    learn({ status: await api.status(), refusal: null });
    return "ok";
  } catch (error) {
    const refusal = refusalFrom(error);
    learn({ refusal });
    return refusal.code === "bad-token" ? "stop" : "failed";
  }
}

/** Shows a sentence for a while, unless another one takes its place. */
function say(note: string): void {
  learn({ note });
  setTimeout(() => model.value.note === note && learn({ note: "" }), NOTE_SHOWN_MS);
}

/** Carries out an order and says how it went; the poller shows what changed. */
async function order(done: string, carryOut: () => Promise<void>): Promise<void> {
  try {
    await carryOut();
    say(done);
  } catch (error) {
    say(`That failed: ${refusalFrom(error).message}`);
  }
}

async function download(checkpoint: string, file: string): Promise<void> {
  say(`Downloading ${file}…`);
  const url = URL.createObjectURL(await api.checkpointFile(checkpoint, file));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = `${checkpoint}-${file}`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), RELEASE_AFTER_MS);
}

/** Over plain http the clipboard is closed to pages; then the text is selected for the reader to copy. */
async function copy(link: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(link);
    return;
  }
  document.querySelector<HTMLInputElement>("#join-link")?.focus();
  throw new Error("this browser does not let the page copy; the link is selected, press Ctrl+C.");
}

const actions: AdminActions = {
  pause: () => void order("Pausing.", () => api.control("pause")),
  resume: () => void order("Resuming.", () => api.control("resume")),
  stop: () => void order("Stopping.", () => api.control("stop")),
  evict: (peer) => void order(`${peer} was removed.`, () => api.evict(peer)),
  download: (checkpoint, file) => void order(`${file} is downloaded.`, () => download(checkpoint, file)),
  copy: (link) => void order("Link copied.", () => copy(link)),
  reload: () => location.reload(),
};

function begin(): void {
  addEventListener("hashchange", () => location.reload());
  if (token) void poll(ask);
  else learn({ refusal: { code: "no-token", message: "" } });
}

function App() {
  return <Admin screen={adminScreen(model.value)} actions={actions} />;
}

render(<App />, document.getElementById("app") as HTMLElement);
effect(() => void (document.title = adminScreen(model.value).documentTitle));
begin();
