// The admin page, bound to its coordinator: polls the status, sends orders, fetches checkpoints.
// It only reports what the coordinator says; an order shows its effect when the next status confirms it.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { Admin, type AdminActions } from "./admin.tsx";
import { Api, baseOf, refusalFrom, tokenOf } from "./api.ts";
import { GenerateSlot } from "./generate_slot.tsx";
import { poll } from "./pace.ts";
import type { RunStatus } from "../peer/wire/status.ts";
import { type AdminModel, adminScreen } from "./view_model_admin.ts";
import { stayOrder } from "./view_model_people.ts";

/** The browser needs the object's address until it has begun the download. */
const RELEASE_AFTER_MS = 60_000;

/** A trace with more operations is megabytes, and is asked for less often. */
const OPS_MANY = 4_000;
const MANY_EVERY_MS = 10_000;

/** Who came in with an invitation, or is kept out, is no matter of seconds. */
const PEOPLE_EVERY_MS = 5_000;

/** Long enough to read a sentence twice. */
const NOTE_SHOWN_MS = 8000;

const token = tokenOf(location.hash);
const api = new Api(token, baseOf(location.href));
const model = signal<AdminModel>({ status: null, refusal: null, note: "", trace: null, held: false });
let tracedAt = -Infinity;
let peopleAskedAt = -Infinity;

function learn(part: Partial<AdminModel>): void {
  model.value = { ...model.value, ...part };
}

async function ask(): Promise<"ok" | "failed" | "stop"> {
  try {
    const status = await api.status();
    learn({ status, refusal: null });
    await askTrace(status);
    // The run is on the page without them, too.
    if (performance.now() - peopleAskedAt > PEOPLE_EVERY_MS) await askPeople().catch(() => {});
    return "ok";
  } catch (error) {
    const refusal = refusalFrom(error);
    learn({ refusal });
    return refusal.code === "bad-token" ? "stop" : "failed";
  }
}

/** The newest step's operations, unless they are here already or the reader looks at one step. */
async function askTrace({ lastStep }: RunStatus): Promise<void> {
  const { trace = null, held } = model.value;
  if (held || lastStep === undefined || lastStep.step === trace?.step) return;
  const ops = trace?.lanes.reduce((sum, lane) => sum + lane.ops.length, 0) ?? 0;
  if (ops > OPS_MANY && performance.now() - tracedAt < MANY_EVERY_MS) return;
  tracedAt = performance.now();
  learn({ trace: await api.trace() });
}

/** Who may come in, who is kept out, who steers. */
async function askPeople(): Promise<void> {
  peopleAskedAt = performance.now();
  const lists = [api.invitations(), api.bans(), api.organizers()] as const;
  const [invitations, bans, organizers] = await Promise.all(lists);
  learn({ invitations, bans, organizers, now: Date.now() });
}

/** Shows a sentence for a while, unless another one takes its place. */
function say(note: string): void {
  learn({ note });
  setTimeout(() => model.value.note === note && learn({ note: "" }), NOTE_SHOWN_MS);
}

/** A dry run stays on the page until it is put away, applied, or asked for anew. */
async function previewPlan(): Promise<void> {
  learn({ replan: { phase: "asking" } });
  try {
    learn({ replan: { phase: "shown", preview: await api.replan(false) } });
  } catch (error) {
    learn({ replan: { phase: "failed", message: refusalFrom(error).message } });
  }
}

async function applyPlan(): Promise<void> {
  const gen = model.value.status?.gen ?? 0;
  learn({ replan: { phase: "asking" } });
  try {
    const preview = await api.replan(true);
    learn({ replan: preview.possible ? { phase: "applied", preview, gen } : { phase: "shown", preview } });
  } catch (error) {
    learn({ replan: { phase: "failed", message: refusalFrom(error).message } });
  }
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
  keep(await api.checkpointFile(checkpoint, file), `${checkpoint}-${file}`);
}

async function exportAs(checkpoint: string, format: string, dtype: string): Promise<void> {
  say(`Exporting ${checkpoint}…`);
  const { blob, name } = await api.exported(checkpoint, format, dtype);
  keep(blob, name);
}

/** Hands bytes to the browser as a download. */
function keep(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
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
  drain: (peer) => void order(`${peer} goes once others hold what it holds.`, () => api.drain(peer)),
  evict: (peer, reason, stay) =>
    void order(`${peer} was removed.`, () => api.evict(peer, reason, stayOrder(stay)).then(askPeople)),
  pin: (peer, stage) =>
    void order(
      stage === "any" ? `${peer} may compute any stage.` : `${peer} is pinned from the next plan on.`,
      () => api.pin(peer, stage === "any" ? null : Number(stage)),
    ),
  lift: (ban) => void order("It may come in again.", () => api.lift(ban).then(askPeople)),
  nameOrganizer: (name) =>
    void order(`${name} has an admin link.`, () => api.nameOrganizer(name).then(askPeople)),
  withdrawOrganizer: (id) =>
    void order("The link is withdrawn.", () => api.withdrawOrganizer(id).then(askPeople)),
  change: (step, set) => void order(`Changed from step ${step} on.`, () => api.change(step, set)),
  stopAt: (step) => void order(`The run ends after step ${step}.`, () => api.stopAt(step)),
  verify: (checkpoint) => void order(`${checkpoint} is whole.`, () => api.verify(checkpoint)),
  rollBack: (checkpoint) => void order(`Back to ${checkpoint}.`, () => api.rollBack(checkpoint)),
  remove: (checkpoint) => void order(`${checkpoint} is deleted.`, () => api.remove(checkpoint)),
  invite: (what) => void order("Invitation made.", () => api.makeInvitation(what).then(askPeople)),
  withdraw: (id) => void order(`${id} is withdrawn.`, () => api.withdraw(id).then(askPeople)),
  openPublic: (open) =>
    void order(
      `The public link is ${open ? "open" : "closed"}.`,
      () => api.openPublic(open).then(askPeople),
    ),
  openText: (open) =>
    void order(
      open ? "Whoever may join may write text, too." : "Only organizers may write text.",
      () => api.openText(open).then(askPeople),
    ),
  download: (checkpoint, file) => void order(`${file} is downloaded.`, () => download(checkpoint, file)),
  exportAs: (checkpoint, format, dtype) =>
    void order(`${checkpoint} is exported.`, () => exportAs(checkpoint, format, dtype)),
  copy: (link) => void order("Link copied.", () => copy(link)),
  previewPlan: () => void previewPlan(),
  applyPlan: () => void applyPlan(),
  dropPlan: () => learn({ replan: null }),
  hold: (held) => learn({ held }),
  reload: () => location.reload(),
};

function begin(): void {
  addEventListener("hashchange", () => location.reload());
  if (token) void poll(ask);
  else learn({ refusal: { code: "no-token", message: "" } });
}

/** There are computers that have the model. */
function isLive(status: AdminModel["status"]): boolean {
  return status !== null && status.stages.length > 0 && !["finished", "failed"].includes(status.state);
}

function App() {
  const live = isLive(model.value.status);
  const tryIt = <GenerateSlot base={baseOf(location.href)} token={token} live={live} announce={say} />;
  return <Admin screen={adminScreen(model.value)} actions={actions} tryIt={tryIt} />;
}

render(<App />, document.getElementById("app") as HTMLElement);
effect(() => void (document.title = adminScreen(model.value).documentTitle));
begin();
