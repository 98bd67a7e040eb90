// The runs page as data: the list of a coordinator's runs -> what is shown of each. Pure; draws and fetches nothing. Every colour
// it asks for comes with a word that says the same.
import type { HubRun, HubRuns } from "../peer/wire/hub.ts";
import type { RunState } from "../peer/wire/status.ts";
import { count, loss, magnitude, percent, plural } from "./format.ts";
import { type Notice, noticeForRefusal, type Tone } from "./view_model_notice.ts";
import type { Fact } from "./view_model_tab.ts";

export interface RunsModel {
  list: HubRuns | null;
  /** The last poll's refusal; with a list it means that the list is stale. */
  refusal: { code: string; message: string } | null;
  /** Outcome of the last order; empty after a while. */
  note: string;
}

export interface RunRow {
  id: string;
  name: string;
  /** Who runs it. */
  subtitle: string;
  state: { word: string; tone: Tone; reason: string };
  progress: { value: number; max: number; text: string; percent: string };
  facts: Fact[];
  joinLink: string | null;
  adminLink: string | null;
  /** What may be done with it now; nothing while something is being done. */
  can: {
    archive: boolean;
    open: "open" | "bring back" | null;
    clone: boolean;
    list: boolean;
    remove: boolean;
  };
  listed: boolean;
  /** What archiving it means for who is in it. */
  archiveText: string;
}

export interface RunsView {
  kind: "list";
  admin: boolean;
  title: string;
  subtitle: string;
  stale: string | null;
  note: string;
  /** Those that run, then the others, then those put away; each empty or not. */
  groups: { title: string; rows: RunRow[] }[];
  empty: string | null;
}

export type RunsScreen =
  & { announce: string; documentTitle: string }
  & (
    | { kind: "loading" }
    | ({ kind: "notice" } & Notice)
    | RunsView
  );

const ORGANIZER = "the coordinator's organizer";

export function runsScreen({ list, refusal, note }: RunsModel): RunsScreen {
  if (list === null && refusal === null) {
    return { kind: "loading", announce: "", documentTitle: "Runs · Shoal" };
  }
  if (list === null || refusal?.code === "bad-token") {
    const notice = noticeForRefusal(refusal!, ORGANIZER);
    return { kind: "notice", ...notice, announce: notice.title, documentTitle: `${notice.title} · Shoal` };
  }
  const view = listView(list);
  const stale = refusal === null ? null : "The coordinator does not answer; this list may be out of date.";
  return { ...view, stale, note, announce: note || (stale ?? ""), documentTitle: `${view.title} · Shoal` };
}

function listView({ admin, runs }: HubRuns): Omit<RunsView, "stale" | "note"> {
  const rows = (places: HubRun["place"][]) => runs.filter(({ place }) => places.includes(place)).map(rowOf);
  const open = rows(["open"]);
  const groups = admin
    ? [
      { title: "Open", rows: open },
      { title: "Not open", rows: rows(["broken", "closed"]) },
      { title: "Archived", rows: rows(["archived"]) },
    ].filter((group) => group.rows.length > 0)
    : open.length === 0
    ? []
    : [{ title: "Open to everybody", rows: open }];
  const peers = runs.reduce((sum, run) => sum + run.peers, 0);
  return {
    ...{ kind: "list", admin, groups },
    title: admin ? "Runs of this coordinator" : "Runs you can join",
    subtitle: open.length === 0
      ? ""
      : `${plural(open.length, "run")} open, ${plural(peers, "computer")} in ${
        open.length === 1 ? "it" : "them"
      }.`,
    empty: runs.length > 0
      ? null
      : admin
      ? "There is no run yet. Start one below; its links appear here."
      : "No run is open to everybody at the moment. Whoever invited you has a link to theirs.",
  };
}

const STATES: Record<RunState, { word: string; tone: Tone }> = {
  "waiting": { word: "Waiting for computers", tone: "info" },
  "warming up": { word: "Warming up", tone: "info" },
  "training": { word: "Training", tone: "good" },
  "paused": { word: "Paused", tone: "warn" },
  "finished": { word: "Finished", tone: "good" },
  "failed": { word: "Failed", tone: "bad" },
};

const PLACES: Record<Exclude<HubRun["place"], "open">, { word: string; tone: Tone }> = {
  closed: { word: "Closed", tone: "info" },
  archived: { word: "Archived", tone: "info" },
  broken: { word: "Cannot run", tone: "bad" },
};

function stateOf({ place, state, reason, busy }: HubRun): RunRow["state"] {
  if (busy !== "") return { word: busy[0]!.toUpperCase() + busy.slice(1), tone: "info", reason };
  if (place !== "open") return { ...PLACES[place], reason };
  return { ...STATES[state ?? "waiting"], reason };
}

function rowOf(run: HubRun): RunRow {
  const { id, name, operator, place, busy, step, maxIters, listed, joinLink, adminLink, peers } = run;
  const free = busy === "";
  return {
    ...{ id, name, listed, adminLink, joinLink: free ? joinLink : null },
    subtitle: operator === "" ? "" : `Run by ${operator}`,
    state: stateOf(run),
    progress: {
      ...{ value: Math.min(step, maxIters), max: Math.max(1, maxIters), percent: percent(step, maxIters) },
      // A run whose log cannot be read does not tell how long it was to be.
      text: maxIters === 0 ? "Steps unknown" : `Step ${count(step)} of ${count(maxIters)}`,
    },
    facts: factsOf(run),
    can: {
      archive: free && place !== "archived",
      open: !free || place === "open" ? null : place === "archived" ? "bring back" : "open",
      clone: free && maxIters > 0,
      list: free && place === "open",
      remove: free && place === "archived",
    },
    archiveText:
      (place === "open" && peers > 0
        ? `The step under way is finished, a checkpoint is written, and ${
          plural(peers, "computer")
        } sent home. `
        : "") + "It leaves this list, its folder is kept, and it can be brought back.",
  };
}

function factsOf({ place, peers, params, trainLoss, valLoss, dataset, publicText }: HubRun): Fact[] {
  const losses = [
    ...(trainLoss === null ? [] : [{ label: "Training loss", value: loss(trainLoss) }]),
    ...(valLoss === null ? [] : [{ label: "Validation loss", value: loss(valLoss) }]),
  ];
  return [
    ...(place === "open" ? [{ label: "Computers", value: count(peers) }] : []),
    ...(params === 0 ? [] : [{ label: "Parameters", value: magnitude(params) }]),
    ...(dataset === "" ? [] : [{ label: "Text", value: dataset }]),
    ...losses,
    ...(publicText ? [{ label: "Writing text", value: "with its join link" }] : []),
  ];
}
