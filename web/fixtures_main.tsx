// The page of the fixtures build: draws the state named in the address, or a list of all states.
// Built only in mode "fixtures"; presses are counted on the page's root for tests, and do nothing else.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { render } from "preact";
import { Admin, type AdminActions } from "./admin.tsx";
import { Contributor, type ContributorActions } from "./contributor.tsx";
import { type Fixture, fixtures } from "./fixtures.ts";
import { adminScreen } from "./view_model_admin.ts";
import { tabScreen } from "./view_model_tab.ts";

/** Leaves the last press where a test can read it. */
function pressed(action: string): () => void {
  return () => void (document.documentElement.dataset["pressed"] = action);
}

const tabActions: ContributorActions = {
  lend: pressed("lend"),
  refuse: pressed("refuse"),
  pause: pressed("pause"),
  resume: pressed("resume"),
  finish: pressed("finish"),
  leave: pressed("leave"),
  again: pressed("again"),
  change: (id, text) => pressed(`change ${id} ${text}`)(),
  setName: (name) => pressed(`name ${name}`)(),
  setWakeLock: (on) => pressed(`wake-lock ${on}`)(),
  withdraw: pressed("withdraw"),
  copyDiagnostics: pressed("diagnostics"),
};

const adminActions: AdminActions = {
  pause: pressed("pause"),
  resume: pressed("resume"),
  stop: pressed("stop"),
  drain: (peer) => pressed(`drain ${peer}`)(),
  evict: (peer, reason) => pressed(`evict ${peer}${reason === "" ? "" : `: ${reason}`}`)(),
  change: (step, set) => pressed(`change ${step} ${JSON.stringify(set)}`)(),
  stopAt: (step) => pressed(`stop at ${step}`)(),
  verify: (checkpoint) => pressed(`verify ${checkpoint}`)(),
  rollBack: (checkpoint) => pressed(`roll back ${checkpoint}`)(),
  remove: (checkpoint) => pressed(`remove ${checkpoint}`)(),
  invite: (what) => pressed(`invite ${JSON.stringify(what)}`)(),
  withdraw: (id) => pressed(`withdraw ${id}`)(),
  openPublic: (open) => pressed(open ? "open" : "close")(),
  download: (checkpoint, file) => pressed(`download ${checkpoint} ${file}`)(),
  exportAs: (checkpoint, format, dtype) => pressed(`export ${checkpoint} ${format} ${dtype}`)(),
  copy: (link) => pressed(`copy ${link}`)(),
  hold: (held) => pressed(held ? "hold" : "follow")(),
  reload: pressed("reload"),
};

function Drawn({ fixture }: { fixture: Fixture }) {
  return fixture.page === "admin"
    ? <Admin screen={adminScreen(fixture.model)} actions={adminActions} />
    : <Contributor screen={tabScreen(fixture.model)} actions={tabActions} />;
}

function Index() {
  return (
    <main class="page narrow">
      <h1>Every state of both pages</h1>
      <ul>
        {fixtures.map(({ name }) => (
          <li key={name}>
            <a href={`?fixture=${name}`}>{name}</a>
          </li>
        ))}
      </ul>
    </main>
  );
}

const wanted = new URLSearchParams(location.search).get("fixture");
const found = fixtures.find((fixture) => fixture.name === wanted);
if (found) {
  document.title = (found.page === "admin" ? adminScreen(found.model) : tabScreen(found.model)).documentTitle;
}
render(found ? <Drawn fixture={found} /> : <Index />, document.getElementById("app") as HTMLElement);
