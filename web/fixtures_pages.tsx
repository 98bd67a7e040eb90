// How the fixtures build draws each kind of page, and what its document is called. Presses are left on the page's root for
// tests and do nothing else. A further kind of page is one more case here; nothing here ships with the pages.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { Admin, type AdminActions } from "./admin.tsx";
import { Contributor, type ContributorActions } from "./contributor.tsx";
import type { Fixture } from "./fixtures_kinds.ts";
import { Runs, type RunsActions } from "./runs.tsx";
import { type CreateActions, CreateForm } from "./runs_create.tsx";
import { adminScreen } from "./view_model_admin.ts";
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

export function Drawn({ fixture }: { fixture: Fixture }) {
  switch (fixture.page) {
    case "contributor":
      return <Contributor screen={tabScreen(fixture.model)} actions={tabActions} />;
    case "admin":
      return <Admin screen={adminScreen(fixture.model)} actions={adminActions} />;
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
    case "runs":
      return runsScreen(fixture.model).documentTitle;
  }
}
