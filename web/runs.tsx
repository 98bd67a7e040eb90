// The runs page as components: the list of a coordinator's runs with what may be done with each. Draws view_model_runs.ts and
// reports presses; the form for a new run is runs_create.tsx, which loads when it is wanted.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import type { ComponentChildren } from "preact";
import { ConfirmButton } from "./confirm.tsx";
import { Badge, Facts, Frame, LoadingScreen, NoticeScreen, Ruler, ToneIcon } from "./parts.tsx";
import type { RunRow, RunsScreen, RunsView } from "./view_model_runs.ts";

export interface RunsActions {
  archive(id: string): void;
  /** A run that is closed, broken or archived. */
  open(id: string): void;
  list(id: string, listed: boolean): void;
  remove(id: string, name: string): void;
  /** Opens the form, empty or as the run is. */
  create(): void;
  clone(id: string, name: string): void;
  copy(link: string): void;
  reload(): void;
}

interface RunsProps {
  screen: RunsScreen;
  actions: RunsActions;
  /** Above the list, such as the form. */
  children?: ComponentChildren;
  /** Below it: what runs learn from. */
  texts?: ComponentChildren;
}

export function Runs({ screen, actions, children, texts }: RunsProps) {
  const toast = screen.kind === "list" && screen.note !== "";
  return (
    <Frame wide={screen.kind === "list"} announce={screen.announce} toast={toast}>
      {screen.kind === "loading" && <LoadingScreen title="Asking which runs there are…" />}
      {screen.kind === "notice" && <NoticeScreen notice={screen} onButton={actions.reload} />}
      {screen.kind === "list" && <List view={screen} actions={actions} texts={texts}>{children}</List>}
    </Frame>
  );
}

function List(
  { view, actions, children, texts }: {
    view: RunsView;
    actions: RunsActions;
    children: ComponentChildren;
    texts: ComponentChildren;
  },
) {
  return (
    <div class="board">
      {view.stale && (
        <p class="stale">
          <ToneIcon tone="warn" /> {view.stale}
        </p>
      )}
      <section class="situation">
        <h1>{view.title}</h1>
        {view.subtitle && <p class="subtitle">{view.subtitle}</p>}
        {view.empty && <p class="lead">{view.empty}</p>}
        {view.admin && children === undefined && (
          <p class="actions">
            <button type="button" class="primary" onClick={actions.create}>Start a run</button>
          </p>
        )}
      </section>
      {children}
      {view.groups.map(({ title, rows }) => (
        <section key={title} class="runs" aria-label={title}>
          <h2>{title}</h2>
          <ul class="run-rows">
            {rows.map((row) => <Run key={row.id} row={row} admin={view.admin} actions={actions} />)}
          </ul>
        </section>
      ))}
      {view.admin && texts}
    </div>
  );
}

interface RunProps {
  row: RunRow;
  admin: boolean;
  actions: RunsActions;
}

function Run({ row, admin, actions }: RunProps) {
  return (
    <li class="panel run">
      <p class="phase">
        <Badge tone={row.state.tone}>{row.state.word}</Badge>
        <span class="phase-reason">{row.state.reason}</span>
      </p>
      <h3>{row.name}</h3>
      {row.subtitle && <p class="quiet">{row.subtitle}</p>}
      <Ruler progress={row.progress} note={row.progress.percent} />
      <Facts facts={row.facts} />
      {admin
        ? <Orders row={row} actions={actions} />
        : row.joinLink === null
        ? <p class="quiet">By invitation only at the moment.</p>
        : (
          <p class="actions">
            <a class="button primary" href={row.joinLink}>
              Look at it<span class="visually-hidden">: {row.name}</span>
            </a>
            <span class="beside">Nothing runs before you agree there.</span>
          </p>
        )}
    </li>
  );
}

function Orders({ row, actions }: Omit<RunProps, "admin">) {
  const { id, name, can, joinLink, adminLink, listed } = row;
  return (
    <>
      {joinLink && <JoinLink id={id} name={name} link={joinLink} onCopy={actions.copy} />}
      {can.list && (
        <p class="field check">
          <input
            id={`listed-${id}`}
            type="checkbox"
            checked={listed}
            onChange={(event) => actions.list(id, event.currentTarget.checked)}
          />
          <label for={`listed-${id}`}>
            Show it to everybody who opens this page<span class="visually-hidden">: {name}</span>
          </label>
        </p>
      )}
      <p class="actions">
        {adminLink && (
          <a class="button" href={adminLink}>
            Its admin page<span class="visually-hidden">: {name}</span>
          </a>
        )}
        {can.open && (
          <button
            type="button"
            aria-label={`${OPEN[can.open]}: ${name}`}
            onClick={() => actions.open(id)}
          >
            {OPEN[can.open]}
          </button>
        )}
        {can.clone && (
          <button
            type="button"
            aria-label={`Start one like it: ${name}`}
            onClick={() => actions.clone(id, name)}
          >
            Start one like it
          </button>
        )}
        {can.archive && (
          <ConfirmButton
            label="Archive"
            describedLabel={`Archive ${name}`}
            title={`Archive ${name}?`}
            text={row.archiveText}
            confirm="Archive it"
            onConfirm={() => actions.archive(id)}
          />
        )}
        {can.remove && (
          <ConfirmButton
            label="Delete"
            describedLabel={`Delete ${name}`}
            title={`Delete ${name} for good?`}
            text="Its checkpoints, its log and its curves are deleted from the coordinator's disk. Nothing brings them back."
            field={`To be sure, write its name: ${name}`}
            confirm="Delete it"
            onConfirm={(words) => actions.remove(id, words)}
          />
        )}
      </p>
    </>
  );
}

const OPEN = { "open": "Open it", "bring back": "Bring it back" } as const;

function JoinLink({ id, name, link, onCopy }: {
  id: string;
  name: string;
  link: string;
  onCopy: (link: string) => void;
}) {
  return (
    <p class="copy">
      <label for={`join-${id}`}>
        Join link<span class="visually-hidden">of {name}</span>
      </label>
      <input id={`join-${id}`} readOnly value={link} onFocus={(event) => event.currentTarget.select()} />
      <button type="button" aria-label={`Copy the join link of ${name}`} onClick={() => onCopy(link)}>
        Copy
      </button>
    </p>
  );
}
