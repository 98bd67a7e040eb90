// The picture of the newest step: a row per stage and peer, bars over time. It draws view_model_gantt.ts; the only state is which
// row is being read. Kinds differ by pattern and by label, every row and the whole picture can be read as text.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useRef, useState } from "preact/hooks";
import { ScrollRegion } from "./parts.tsx";
import type { BarKind, GanttBar, GanttRow, GanttView } from "./view_model_gantt.ts";

const COLUMNS = ["Stage", "Peer", "Work", "F", "B", "W", "Waits", "of it for links", "Idle"];
const WORDS: Record<BarKind, string> = {
  F: "F forward",
  B: "B gradient of the input",
  W: "W gradient of the weights",
  link: "waits for a link",
  idle: "waits for others",
  elsewhere: "computes another stage",
};
/** Height of a row's bars in pixels; widths are shares of the row. */
const BAR_PX = 26;

export interface GanttProps {
  view: GanttView;
  held: boolean;
  onHold: (held: boolean) => void;
}

export function Gantt({ view, held, onHold }: GanttProps) {
  return (
    <section class="panel gantt" aria-labelledby="gantt-title">
      <div class="gantt-head">
        <h2 id="gantt-title">The newest step</h2>
        <button type="button" aria-pressed={held} onClick={() => onHold(!held)}>Hold this step</button>
      </div>
      <p>{view.summary}</p>
      <Patterns />
      <Rows view={view} />
      <Legend view={view} />
      {view.note && <p class="quiet">{view.note}</p>}
      <GanttTable rows={view.rows} />
    </section>
  );
}

function Rows({ view }: { view: GanttView }) {
  const [chosen, choose] = useState("");
  const list = useRef<HTMLUListElement>(null);
  const at = Math.max(0, view.rows.findIndex((row) => row.key === chosen));
  function go(index: number): void {
    const row = view.rows[Math.min(view.rows.length - 1, Math.max(0, index))]!;
    choose(row.key);
    const options = list.current?.querySelectorAll<HTMLElement>("[role=option]");
    options?.[view.rows.indexOf(row)]?.focus();
  }
  function onKeyDown(event: KeyboardEvent): void {
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: view.rows.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  }
  return (
    <>
      <ul class="gantt-rows" role="listbox" aria-label="Stages over time" ref={list} onKeyDown={onKeyDown}>
        {view.rows.map((row, index) => (
          <li
            key={row.key}
            role="option"
            aria-selected={index === at}
            aria-label={row.text}
            tabIndex={index === at ? 0 : -1}
            onFocus={() => choose(row.key)}
            onClick={() => go(index)}
          >
            <span class="gantt-name">
              <strong>{row.stage}</strong> <small>{row.peer}</small>
            </span>
            <Bars row={row} view={view} />
          </li>
        ))}
      </ul>
      <Axis view={view} />
      <p class="gantt-text">{view.rows[at]!.text}</p>
    </>
  );
}

function Bars({ row, view }: { row: GanttRow; view: GanttView }) {
  return (
    <svg class="gantt-bars" height={BAR_PX} aria-hidden="true" focusable="false">
      {row.bars.map((bar, index) => <Bar key={index} bar={bar} />)}
      <Marks view={view} />
    </svg>
  );
}

function Bar({ bar }: { bar: GanttBar }) {
  const { kind, x, width, label, shown } = bar;
  const inset = kind === "idle" || kind === "elsewhere" ? 9 : kind === "link" ? 5 : 1;
  return (
    <>
      <rect
        class={`gantt-${kind.toLowerCase()}`}
        {...{ x: share(x), width: share(width), y: inset, height: BAR_PX - 2 * inset }}
      />
      {shown !== "never" && (
        <text
          class={`gantt-label on-${kind.toLowerCase()} fits-${shown}`}
          x={share(x + width / 2)}
          y={BAR_PX - 8}
        >
          {label}
        </text>
      )}
    </>
  );
}

/** Where the step was committed, and where its end was predicted. */
function Marks({ view }: { view: GanttView }) {
  const line = (name: string, x: number) => (
    <line class={`gantt-${name}`} x1={share(x)} x2={share(x)} y1="0" y2={BAR_PX} />
  );
  return (
    <>
      {line("committed", Math.min(view.committed, 0.999))}
      {view.predicted !== null && line("predicted", Math.min(view.predicted, 0.999))}
    </>
  );
}

function Axis({ view }: { view: GanttView }) {
  return (
    <div class="gantt-axis" aria-hidden="true">
      <span class="gantt-name"></span>
      <svg class="gantt-bars" height="20" focusable="false">
        {view.ticks.map(({ x, label, wide }) => (
          <text key={label} class={`gantt-tick ${wide ? "fits-wide" : ""}`} x={share(x)} y="14">
            {label}
          </text>
        ))}
      </svg>
    </div>
  );
}

function share(value: number): string {
  return `${(value * 100).toFixed(3)}%`;
}

function Patterns() {
  return (
    <svg class="gantt-patterns" width="0" height="0" aria-hidden="true" focusable="false">
      <defs>
        <pattern
          id="gantt-hatched"
          width="6"
          height="6"
          patternUnits="userSpaceOnUse"
          patternTransform="rotate(45)"
        >
          <path class="pattern-b" d="M0 0V6" />
        </pattern>
        <pattern id="gantt-dotted" width="5" height="5" patternUnits="userSpaceOnUse">
          <circle class="pattern-w" cx="2.5" cy="2.5" r="1" />
        </pattern>
        <pattern id="gantt-lined" width="4" height="4" patternUnits="userSpaceOnUse">
          <path class="pattern-link" d="M0 2H4" />
        </pattern>
      </defs>
    </svg>
  );
}

function Legend({ view }: { view: GanttView }) {
  return (
    <ul class="legend gantt-legend" aria-label="What the bars mean">
      {view.kinds.map((kind) => (
        <li key={kind}>
          <svg width="28" height={BAR_PX} aria-hidden="true" focusable="false">
            <Bar bar={{ kind, x: 0.04, width: 0.92, label: "", shown: "never" }} />
          </svg>
          {WORDS[kind]}
        </li>
      ))}
      <li>
        <svg width="12" height={BAR_PX} aria-hidden="true" focusable="false">
          <line class="gantt-committed" x1="6" x2="6" y1="0" y2={BAR_PX} />
        </svg>
        committed
      </li>
      {view.predicted !== null && (
        <li>
          <svg width="12" height={BAR_PX} aria-hidden="true" focusable="false">
            <line class="gantt-predicted" x1="6" x2="6" y1="0" y2={BAR_PX} />
          </svg>
          end as predicted
        </li>
      )}
      <li>Numbers are micro-batches.</li>
    </ul>
  );
}

function GanttTable({ rows }: { rows: GanttRow[] }) {
  return (
    <details>
      <summary>The same as a table</summary>
      <ScrollRegion label="Table of the newest step">
        <table class="gantt-table">
          <caption class="visually-hidden">Mean times of the operations and waits of the newest step</caption>
          <thead>
            <tr>{COLUMNS.map((column) => <th scope="col" key={column}>{column}</th>)}</tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.key}>
                <th scope="row">{row.stage}</th>
                <td>{row.peer}</td>
                {row.cells.map((cell, index) => <td class="figure" key={COLUMNS[index + 2]}>{cell}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </ScrollRegion>
    </details>
  );
}
