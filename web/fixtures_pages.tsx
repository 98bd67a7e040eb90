// How the fixtures build draws each kind of page, and what its document is called. Presses are left on the page's root for
// tests and do nothing else. A further kind of page is one more case here; nothing here ships with the pages.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { Admin, type AdminActions } from "./admin.tsx";
import { Contributor, type ContributorActions } from "./contributor.tsx";
import { Corpora, type CorporaActions } from "./corpora.tsx";
import type { Fixture } from "./fixtures_kinds.ts";
import { Generate, type GenerateActions } from "./generate.tsx";
import { TryPanel } from "./generate_slot.tsx";
import { Frame } from "./parts.tsx";
import { Runs, type RunsActions } from "./runs.tsx";
import { type CreateActions, CreateForm } from "./runs_create.tsx";
import { adminScreen } from "./view_model_admin.ts";
import { corporaView } from "./view_model_corpora.ts";
import { generateView } from "./view_model_generate.ts";
import { runsScreen } from "./view_model_runs.ts";
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
  evict: (peer, reason, stay) =>
    pressed(`evict ${peer}${reason === "" ? "" : `: ${reason}`}${stay === "at once" ? "" : `, ${stay}`}`)(),
  pin: (peer, stage) => pressed(`pin ${peer} ${stage}`)(),
  lift: (ban) => pressed(`lift ${ban}`)(),
  nameOrganizer: (name) => pressed(`name organizer ${name}`)(),
  withdrawOrganizer: (id) => pressed(`withdraw organizer ${id}`)(),
  change: (step, set) => pressed(`change ${step} ${JSON.stringify(set)}`)(),
  stopAt: (step) => pressed(`stop at ${step}`)(),
  verify: (checkpoint) => pressed(`verify ${checkpoint}`)(),
  rollBack: (checkpoint) => pressed(`roll back ${checkpoint}`)(),
  remove: (checkpoint) => pressed(`remove ${checkpoint}`)(),
  invite: (what) => pressed(`invite ${JSON.stringify(what)}`)(),
  withdraw: (id) => pressed(`withdraw ${id}`)(),
  openPublic: (open) => pressed(open ? "open" : "close")(),
  openText: (open) => pressed(open ? "open text" : "close text")(),
  download: (checkpoint, file) => pressed(`download ${checkpoint} ${file}`)(),
  exportAs: (checkpoint, format, dtype) => pressed(`export ${checkpoint} ${format} ${dtype}`)(),
  copy: (link) => pressed(`copy ${link}`)(),
  previewPlan: pressed("preview the plan"),
  applyPlan: pressed("apply the plan"),
  dropPlan: pressed("drop the plan"),
  hold: (held) => pressed(held ? "hold" : "follow")(),
  reload: pressed("reload"),
};

const runsActions: RunsActions = {
  archive: (id) => pressed(`archive ${id}`)(),
  open: (id) => pressed(`open ${id}`)(),
  list: (id, listed) => pressed(`${listed ? "list" : "hide"} ${id}`)(),
  remove: (id, name) => pressed(`remove ${id}: ${name}`)(),
  create: pressed("create"),
  clone: (id) => pressed(`clone ${id}`)(),
  copy: (link) => pressed(`copy ${link}`)(),
  reload: pressed("reload"),
};

const createActions: CreateActions = {
  learn: (part) => pressed(`learn ${JSON.stringify(part)}`)(),
  send: pressed("send"),
  cancel: pressed("cancel"),
};

const generateActions: GenerateActions = {
  type: (part) => pressed(`type ${JSON.stringify(part)}`)(),
  send: pressed("write"),
  stop: pressed("stop writing"),
};

const corporaActions: CorporaActions = {
  choose: (file) => pressed(`choose ${file.name}`)(),
  chooseTokenizer: (file) => pressed(`choose tokenizer ${file.name}`)(),
  learn: (part) => pressed(`learn ${JSON.stringify(part)}`)(),
  send: pressed("send the text"),
  cancel: pressed("another file"),
  remove: (id) => pressed(`remove text ${id}`)(),
};

export function Drawn({ fixture }: { fixture: Fixture }) {
  switch (fixture.page) {
    case "contributor":
      return <Contributor screen={tabScreen(fixture.model)} actions={tabActions} />;
    case "admin":
      return <Admin screen={adminScreen(fixture.model)} actions={adminActions} />;
    case "generate":
      return (
        <Frame wide announce="">
          <h1>The run</h1>
          <TryPanel>
            <Generate view={generateView(fixture.model)} actions={generateActions} />
          </TryPanel>
        </Frame>
      );
    case "corpora":
      return (
        <Frame wide announce="">
          <h1>Runs</h1>
          <Corpora view={corporaView(fixture.model)} actions={corporaActions} />
        </Frame>
      );
    case "runs":
      return (
        <Runs screen={runsScreen(fixture.model)} actions={runsActions}>
          {fixture.draft ? <CreateForm model={fixture.draft} actions={createActions} /> : undefined}
        </Runs>
      );
  }
}

export function titleOf(fixture: Fixture): string {
  switch (fixture.page) {
    case "contributor":
      return tabScreen(fixture.model).documentTitle;
    case "admin":
      return adminScreen(fixture.model).documentTitle;
    case "generate":
      return "Try the model · Shoal";
    case "corpora":
      return "Texts · Shoal";
    case "runs":
      return runsScreen(fixture.model).documentTitle;
  }
}
