// What the admin page says about departures: who holds each stage and what happens without them, what departures have cost
// so far, and the recent ones. It draws view_model_recovery.ts and keeps no state.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { Facts, ScrollRegion, ToneIcon } from "./parts.tsx";
import type { DepartureRow, GuardRow, RecoveryView } from "./view_model_recovery.ts";

const DEPARTURE_COLUMNS = ["Time", "Computer", "What happened", "In step", "Late by", "Others did", "Lost"];

export function Recovery({ view }: { view: RecoveryView }) {
  if (view.guards.length === 0 && view.departures.length === 0) return null;
  return (
    <>
      <div class="columns">
        <Guards guards={view.guards} />
        <section class="panel" aria-labelledby="costs-title">
          <h2 id="costs-title">What departures have cost</h2>
          <p>{view.summary}</p>
          <Facts facts={view.costs} />
        </section>
      </div>
      {view.departures.length > 0 && <Departures departures={view.departures} />}
    </>
  );
}

function Guards({ guards }: { guards: GuardRow[] }) {
  return (
    <section class="panel" aria-labelledby="guards-title">
      <h2 id="guards-title">If somebody vanishes now</h2>
      {guards.length === 0 ? <p class="quiet">There is no plan at the moment.</p> : (
        <ul class="guards">
          {guards.map((guard) => (
            <li key={guard.key}>
              <p class="guard-stage">
                <strong>{guard.stage}</strong>
                <small>{guard.holds}</small>
              </p>
              <p>
                <small>{guard.who}</small>
                <span class="guard-outcome">
                  <ToneIcon tone={guard.tone} /> <span>{guard.outcome}</span>
                </span>
              </p>
            </li>
          ))}
        </ul>
      )}
      <p class="quiet">Who presses “Finish this step and leave” hands over first: nothing is lost.</p>
    </section>
  );
}

function Departures({ departures }: { departures: DepartureRow[] }) {
  return (
    <section class="panel" aria-labelledby="departures-title">
      <h2 id="departures-title">Recent departures</h2>
      <ScrollRegion label="Table of recent departures">
        <table class="departures">
          <thead>
            <tr>{DEPARTURE_COLUMNS.map((column) => <th scope="col" key={column}>{column}</th>)}</tr>
          </thead>
          <tbody>{departures.map((row) => <DepartureLine key={row.key} row={row} />)}</tbody>
        </table>
      </ScrollRegion>
    </section>
  );
}

function DepartureLine({ row }: { row: DepartureRow }) {
  return (
    <tr>
      <td class="figure">{row.at}</td>
      <th scope="row">{row.peer}</th>
      <td>{row.how}</td>
      <td class="figure">{row.step}</td>
      <td class="figure">{row.late}</td>
      <td>{row.taken}</td>
      <td class="health">
        <ToneIcon tone={row.tone} /> {row.lost}
      </td>
    </tr>
  );
}
