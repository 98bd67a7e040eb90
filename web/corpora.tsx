// The organizer's texts as components: a form that takes a file, and the list with progress and errors. Draws view_model_corpora.ts and
// reports presses; files are handed on as they are.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { ConfirmButton } from "./confirm.tsx";
import { Badge, Facts, Ruler, ToneIcon } from "./parts.tsx";
import {
  type CorporaView,
  type CorpusDraft,
  type CorpusRow,
  type DraftView,
  FORMATS,
} from "./view_model_corpora.ts";

export interface CorporaActions {
  /** A text's file was picked or dropped. */
  choose(file: File): void;
  /** A tokenizer.json was picked. */
  chooseTokenizer(file: File): void;
  learn(part: Partial<CorpusDraft>): void;
  send(): void;
  cancel(): void;
  remove(id: string): void;
}

interface CorporaProps {
  view: CorporaView;
  actions: CorporaActions;
}

export function Corpora({ view, actions }: CorporaProps) {
  return (
    <section class="corpora" aria-labelledby="corpora-title">
      <h2 id="corpora-title">Texts to learn from</h2>
      <div class="panel corpus-drop" onDragOver={(event) => event.preventDefault()} onDrop={dropped(actions)}>
        {view.draft
          ? <Draft draft={view.draft} sending={view.sending} actions={actions} />
          : <Picker actions={actions} />}
        {view.refusal && (
          <p class="alert alert-bad">
            <ToneIcon tone="bad" /> {view.refusal}
          </p>
        )}
      </div>
      {view.empty && <p class="quiet">{view.empty}</p>}
      <ul class="run-rows">
        {view.rows.map((row) => <Row key={row.id} row={row} actions={actions} />)}
      </ul>
    </section>
  );
}

function dropped(actions: CorporaActions): (event: DragEvent) => void {
  return (event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file !== undefined) actions.choose(file);
  };
}

function picked(take: (file: File) => void): (event: { currentTarget: HTMLInputElement }) => void {
  return ({ currentTarget: input }) => {
    const file = input.files?.[0];
    if (file !== undefined) take(file);
  };
}

function Picker({ actions }: { actions: CorporaActions }) {
  return (
    <div class="field">
      <label for="corpus-file">Bring a text: choose a file, or drop it here</label>
      <input id="corpus-file" type="file" aria-describedby="corpus-help" onChange={picked(actions.choose)} />
      <small id="corpus-help">
        Plain text in UTF-8, JSON Lines, or a column of a Parquet file. It is sent to the coordinator and to
        those who lend computers, as tokens.
      </small>
    </div>
  );
}

function Draft({ draft, sending, actions }: { draft: DraftView; sending: boolean; actions: CorporaActions }) {
  function send(event: Event): void {
    event.preventDefault();
    actions.send();
  }
  return (
    <form class="create" noValidate onSubmit={send}>
      <p class="headline">
        {draft.name} <small>{draft.sizeText}</small>
      </p>
      <div class="fields">
        <Choice
          id="corpus-format"
          label="It is"
          value={draft.format}
          options={FORMATS}
          onChange={(format) => actions.learn({ format: format as CorpusDraft["format"] })}
        />
        {draft.columnLabel && (
          <div class="field">
            <label for="corpus-column">{draft.columnLabel}</label>
            <input
              id="corpus-column"
              value={draft.column}
              maxLength={200}
              autocomplete="off"
              onInput={(event) => actions.learn({ column: event.currentTarget.value })}
            />
          </div>
        )}
        <Choice
          id="corpus-tokenizer"
          label="Cut into"
          value={draft.tokenizer}
          options={draft.tokenizers}
          onChange={(tokenizer) => actions.learn({ tokenizer })}
        />
        {draft.tokenizer === "own" && (
          <div class="field">
            <label for="corpus-own">Your tokenizer.json</label>
            <input id="corpus-own" type="file" accept=".json" onChange={picked(actions.chooseTokenizer)} />
          </div>
        )}
      </div>
      {draft.missing && <p class="field-error">{draft.missing}</p>}
      <p class="actions">
        <button type="submit" class="primary" disabled={sending || draft.missing !== null}>
          {sending ? "Sending…" : "Send it"}
        </button>
        <button type="button" class="plain" onClick={actions.cancel}>Another file</button>
      </p>
    </form>
  );
}

function Choice({ id, label, value, options, onChange }: {
  id: string;
  label: string;
  value: string;
  options: readonly { value: string; label: string }[];
  onChange: (value: string) => void;
}) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map((it) => <option key={it.value} value={it.value}>{it.label}</option>)}
      </select>
    </div>
  );
}

function Row({ row, actions }: { row: CorpusRow; actions: CorporaActions }) {
  return (
    <li class="panel corpus">
      <p class="phase">
        <Badge tone={row.tone}>{row.word}</Badge>
      </p>
      <h3>{row.name}</h3>
      {row.progress && <Ruler progress={row.progress} />}
      {row.error && <p class="corpus-error">{row.error}</p>}
      <Facts facts={row.facts} />
      <p class="actions">
        {row.remove === "Delete" && (
          <ConfirmButton
            label="Delete"
            describedLabel={`Delete the text ${row.name}`}
            title={`Delete the text ${row.name}?`}
            text={row.removeText}
            confirm="Delete it"
            onConfirm={() => actions.remove(row.id)}
          />
        )}
        {(row.remove === "Forget" || row.remove === "Cancel") && (
          <button
            type="button"
            aria-label={`${row.remove}: ${row.name}`}
            onClick={() => actions.remove(row.id)}
          >
            {row.remove}
          </button>
        )}
        {row.remove === null && <span class="beside">{row.removeText}</span>}
      </p>
    </li>
  );
}
