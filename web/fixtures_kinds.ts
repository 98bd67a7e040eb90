// What a fixture is, and how the board's are written: one state of one page, by name. Nothing here ships with the pages.
// A further page has one more line in the union below, and one in fixtures_pages.tsx that draws it.
import type { RunStatus } from "../peer/wire/status.ts";
import { status } from "./fixtures_data.ts";
import type { AdminModel } from "./view_model_admin.ts";
import type { CorporaModel } from "./view_model_corpora.ts";
import type { CreateModel } from "./view_model_create.ts";
import type { GenerateModel } from "./view_model_generate.ts";
import type { RunsModel } from "./view_model_runs.ts";
import type { TabModel } from "./view_model_tab.ts";

export type Fixture =
  | { name: string; page: "contributor"; model: TabModel }
  | { name: string; page: "runs"; model: RunsModel; draft: CreateModel | null }
  | { name: string; page: "admin"; model: AdminModel }
  /** A part of the runs page, drawn by itself. */
  | { name: string; page: "corpora"; model: CorporaModel }
  /** A part of both pages, drawn by itself. */
  | { name: string; page: "generate"; model: GenerateModel };

/** The admin page with a status: the usual one, but for `part`. */
export function board(name: string, part: Partial<RunStatus>, model: Partial<AdminModel> = {}): Fixture {
  return admin(name, { status: { ...status, ...part }, ...model });
}

/** The admin page that knows nothing of the run but what `model` says. */
export function admin(name: string, model: Partial<AdminModel>): Fixture {
  return { name: `admin-${name}`, page: "admin", model: { status: null, refusal: null, note: "", ...model } };
}
