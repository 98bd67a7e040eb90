// The contributor's page, bound to its coordinator and its peer by contributor_desk.ts: draws, listens to the browser, copies.
// Before the click it only asks what the run is called; the peer is loaded after that.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { effect } from "@preact/signals";
import { render } from "preact";
import { Api, baseOf, tokenOf } from "./api.ts";
import { Contributor, type ContributorActions } from "./contributor.tsx";
import { Desk } from "./contributor_desk.ts";
import { diagnostics } from "./contributor_diagnostics.ts";
import { GenerateSlot } from "./generate_slot.tsx";
import { Kept } from "./contributor_kept.ts";
import { tabScreen } from "./view_model_tab.ts";

const base = baseOf(location.href);
const kept = new Kept(() => localStorage, () => sessionStorage, new URL(base).pathname);
/** A page that was installed opens without a link: with the last one that was agreed to. */
const token = tokenOf(location.hash) || kept.last;
/** `?engine=cpu` before the # of the join link, for instance: results that can be compared bit by bit. */
const engine = new URLSearchParams(location.search).get("engine") ?? "auto";
const desk = new Desk({ api: new Api(token, base), base, kept, token, engine });

async function copyDiagnostics(): Promise<void> {
  const { hardwareConcurrency: cores, userAgent } = navigator;
  const protocol = desk.model.value.invite?.version ?? 0;
  const text = diagnostics(desk.model.value, { userAgent, cores, protocol, at: new Date() }, token);
  try {
    await navigator.clipboard.writeText(text);
    desk.say("Copied. It holds no link, no address and no name.");
  } catch {
    desk.say("The browser did not allow copying.");
  }
}

const actions: ContributorActions = {
  lend: () => void desk.lend(),
  refuse: () => desk.refuse(),
  again: () => desk.again(),
  pause: () => desk.pause(),
  resume: () => desk.resume(),
  finish: () => desk.finish(),
  leave: () => desk.leave(),
  change: (id, text) => void desk.change(id, text),
  setName: (name) => desk.setName(name),
  setWakeLock: (on) => void desk.setWakeLock(on),
  withdraw: () => void desk.withdraw(),
  copyDiagnostics: () => void copyDiagnostics(),
};

function listen(): void {
  document.addEventListener("visibilitychange", () => desk.setHidden(document.hidden));
  addEventListener("pagehide", () => desk.goodbye());
  addEventListener("pageshow", (event) => (event as PageTransitionEvent).persisted && desk.comeBack());
  addEventListener("hashchange", () => location.reload());
}

function App() {
  const tryIt = desk.model.value.invite?.text === true && (
    <GenerateSlot
      base={base}
      token={token}
      live={!["waiting", "finished", "failed"].includes(desk.model.value.invite.state)}
      announce={(text) => desk.say(text)}
    />
  );
  return <Contributor screen={tabScreen(desk.model.value)} actions={actions} tryIt={tryIt} />;
}

render(<App />, document.getElementById("app") as HTMLElement);
effect(() => void (document.title = tabScreen(desk.model.value).documentTitle));
listen();
void desk.begin();
