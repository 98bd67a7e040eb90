// The plan on the admin page: why the work is shared as it is, what would be done without one computer, and the dry run of a new
// plan with the order to apply it. Draws view_model_plan.ts and keeps no state.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { ConfirmButton } from "./confirm.tsx";
import { Facts, ScrollRegion, ToneIcon } from "./parts.tsx";
import type { MoveRow, PlanView, PreviewView, StageRow } from "./view_model_plan.ts";

export interface PlanActions {
  /** Asks what the planner would do now; changes nothing. */
  previewPlan(): void;
  applyPlan(): void;
  /** Puts the dry run away. */
  dropPlan(): void;
}

export function PlanPanel({ view, actions }: { view: PlanView; actions: PlanActions }) {
  return (
    <section class="panel plan" aria-labelledby="plan-title">
      <h2 id="plan-title">Plan</h2>
      <Facts facts={view.facts} className="readings" />
      <Folded title="Why the work is shared like this" lines={view.reasons} />
      <Folded title="If one computer left" lines={view.standBy} />
      <Folded title="What has been changed since" lines={view.changes} />
      <p class="actions">
        <button type="button" disabled={!view.mayAsk} onClick={actions.previewPlan}>
          Preview a new plan
        </button>
      </p>
      {view.said && (
        <p aria-busy={view.asking}>
          <ToneIcon tone={view.said.tone} /> {view.said.text}
        </p>
      )}
      {view.preview && <Preview preview={view.preview} actions={actions} />}
    </section>
  );
}

function Folded({ title, lines }: { title: string; lines: string[] }) {
  if (lines.length === 0) return null;
  return (
    <details>
      <summary>{title}</summary>
      <ul class="plan-lines">{lines.map((line) => <li key={line}>{line}</li>)}</ul>
    </details>
  );
}

function Preview({ preview, actions }: { preview: PreviewView; actions: PlanActions }) {
  return (
    <section class="preview" aria-labelledby="preview-title">
      <h3 id="preview-title">A new plan, as a dry run</h3>
      <p>
        <ToneIcon tone={preview.tone} /> {preview.verdict}
      </p>
      <Facts facts={preview.facts} className="readings" />
      {preview.moves.length > 0 && <Moves rows={preview.moves} more={preview.movesLeftOut} />}
      {preview.stages.length > 0 && <Stages rows={preview.stages} />}
      <Folded title="Why it would be like that" lines={preview.reasons} />
      <p class="actions">
        {preview.cost !== null && (
          <ConfirmButton
            label="Apply it"
            describedLabel="Apply it: the new plan"
            title="Apply the new plan?"
            text={preview.cost}
            confirm="Apply it"
            onConfirm={actions.applyPlan}
          />
        )}
        <button type="button" onClick={actions.dropPlan}>Put it away</button>
      </p>
    </section>
  );
}

function Moves({ rows, more }: { rows: MoveRow[]; more: number }) {
  return (
    <>
      <ScrollRegion label="What moves">
        <table>
          <thead>
            <tr>
              {["Computer", "Gets", "From", "Size", "Takes"].map((it) => <th scope="col" key={it}>{it}</th>)}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.key}>
                <th scope="row">{row.peer}</th>
                <td>{row.what}</td>
                <td>{row.from}</td>
                <td>{row.size}</td>
                <td>{row.takes}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </ScrollRegion>
      {more > 0 && <p class="quiet">And {more} more.</p>}
    </>
  );
}

function Stages({ rows }: { rows: StageRow[] }) {
  return (
    <ScrollRegion label="Stages of the new plan">
      <table>
        <thead>
          <tr>
            {["Stage", "Holds", "Computes", "Keeps a copy"].map((it) => <th scope="col" key={it}>{it}</th>)}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key}>
              <th scope="row">{row.stage}</th>
              <td>{row.holds}</td>
              <td>{row.computes}</td>
              <td>{row.keeps}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </ScrollRegion>
  );
}
