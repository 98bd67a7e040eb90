// The contributor's page, bound to its coordinator and its peer. Decides nothing about training.
// Before the click it only asks what the run and the graphics adapter are called; the peer is loaded after that.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { ShoalError } from "../peer/wire/errors.ts";
import { ENGINES, isEngineWish, type TabPeer, type TabSnapshot } from "../peer/wire/status.ts";
import { Api, refusalFrom, tokenOf } from "./api.ts";
import { Contributor, type ContributorActions } from "./contributor.tsx";
import { latestOnly, poll } from "./pace.ts";
import { type TabModel, tabScreen } from "./view_model_tab.ts";

const token = tokenOf(location.hash);
/** `?engine=cpu` before the # of the join link, for instance: results that can be compared bit by bit. */
const wish = new URLSearchParams(location.search).get("engine") ?? "auto";
const engine = isEngineWish(wish) ? wish : "auto";
const api = new Api(token);
const model = signal<TabModel>({
  invite: null,
  inspection: null,
  snapshot: null,
  asked: false,
  refusal: null,
  secure: isSecureContext,
  engine,
});
let loading: Promise<TabPeer> | null = null;

function learn(part: Partial<TabModel>): void {
  model.value = { ...model.value, ...part };
}

function refuse(error: unknown): void {
  learn({ refusal: refusalFrom(error) });
}

/** Loads the peer's code once; it computes nothing until `start`. */
function tabPeer(): Promise<TabPeer> {
  loading ??= import("../peer/browser.ts").then((module) => module.openTabPeer());
  return loading;
}

/** Asks until the coordinator answers or refuses; an unreachable one may come back. */
async function askInvite(): Promise<"ok" | "failed" | "stop"> {
  try {
    learn({ invite: await api.invite(), refusal: null });
    return "stop";
  } catch (error) {
    refuse(error);
    return error instanceof ShoalError && error.code === "offline" ? "failed" : "stop";
  }
}

async function inspect(): Promise<void> {
  if (engine === "cpu" || engine === "tfjs-wasm") {
    return learn({ inspection: { webgpu: "ok", adapter: "this computer's processor", software: true } });
  }
  try {
    learn({ inspection: await (await tabPeer()).inspect() });
  } catch (error) {
    refuse(error);
  }
}

async function lend(): Promise<void> {
  learn({ asked: true });
  const show = latestOnly((snapshot: TabSnapshot) => learn({ snapshot }));
  try {
    await (await tabPeer()).start({ origin: location.origin, token, engine }, show);
  } catch (error) {
    refuse(error);
  }
}

/** Sends a wish to the running peer; a failure becomes a screen, never silence. */
function tell(wish: (peer: TabPeer) => Promise<void>): void {
  if (!model.value.asked) return;
  tabPeer().then(wish).catch(refuse);
}

const actions: ContributorActions = {
  lend: () => void lend(),
  pause: () => tell((peer) => peer.pause()),
  resume: () => tell((peer) => peer.resume()),
  finish: () => tell((peer) => peer.finishAndLeave()),
  leave: () => tell((peer) => peer.leaveNow()),
  reload: () => location.reload(),
};

/** A page that the browser gives back said goodbye when it went; it goes on as it was, as a new peer. */
function comeBack(event: Event): void {
  if (!(event as PageTransitionEvent).persisted) return;
  if (model.value.asked) tell((peer) => peer.comeBack());
  else location.reload();
}

function listen(): void {
  document.addEventListener("visibilitychange", () => tell((peer) => peer.setHidden(document.hidden)));
  addEventListener("pagehide", () => tell((peer) => peer.goodbye()));
  addEventListener("pageshow", comeBack);
  addEventListener("hashchange", () => location.reload());
}

async function begin(): Promise<void> {
  if (!token) return learn({ refusal: { code: "no-token", message: "" } });
  if (!isEngineWish(wish)) {
    const known = ENGINES.map((name) => `?engine=${name}`).join(", ");
    const message = `The address asks for the engine "${wish}"; leave it out, or use one of ${known}.`;
    return learn({ refusal: { code: "usage", message } });
  }
  await poll(askInvite);
  if (model.value.invite) await inspect();
}

function App() {
  return <Contributor screen={tabScreen(model.value)} actions={actions} />;
}

render(<App />, document.getElementById("app") as HTMLElement);
effect(() => void (document.title = tabScreen(model.value).documentTitle));
listen();
void begin();
