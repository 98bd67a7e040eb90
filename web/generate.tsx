// "Try the model": the form, the text as it is written, and a button that stops it. Draws view_model_generate.ts and reports what
// is typed and pressed; generate_panel.tsx binds it to the coordinator. Loaded only when somebody opens it.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useId } from "preact/hooks";
import "./generate.css";
import { ToneIcon } from "./parts.tsx";
import type { FieldView, GenerateForm, GenerateView } from "./view_model_generate.ts";

export interface GenerateActions {
  type(part: Partial<GenerateForm>): void;
  send(): void;
  stop(): void;
}

export function Generate({ view, actions }: { view: GenerateView; actions: GenerateActions }) {
  function send(event: SubmitEvent): void {
    event.preventDefault();
    actions.send();
  }
  return (
    <>
      <form class="try-form" onSubmit={send}>
        <Prompt view={view} actions={actions} />
        {view.writers.length > 0 && <Writers view={view} actions={actions} />}
        <div class="try-numbers">
          {view.fields.map((field) => (
            <NumberInput
              key={field.id}
              field={field}
              onType={(text) => actions.type({ [field.id]: text })}
            />
          ))}
        </div>
        <p class="actions">
          <button type="submit" class="primary" disabled={!view.maySend}>Write</button>
          {view.mayStop && <button type="button" onClick={actions.stop}>Stop</button>}
        </p>
      </form>
      {view.said && (
        <p class="try-said">
          <ToneIcon tone={view.said.tone} /> <span>{view.said.text}</span>
        </p>
      )}
      {view.output && <Output output={view.output} busy={view.busy} />}
    </>
  );
}

function Writers({ view, actions }: { view: GenerateView; actions: GenerateActions }) {
  const id = useId();
  return (
    <fieldset class="try-by">
      <legend>Written by</legend>
      {view.writers.map((writer) => (
        <label key={writer.id}>
          <input
            type="radio"
            name={id}
            checked={writer.chosen}
            disabled={view.busy}
            onChange={() => actions.type({ by: writer.id })}
          />
          <span>
            {writer.label} <small>{writer.hint}</small>
          </span>
        </label>
      ))}
    </fieldset>
  );
}

function Prompt({ view, actions }: { view: GenerateView; actions: GenerateActions }) {
  const id = useId();
  return (
    <div class="try-field">
      <label for={id}>Text to continue</label>
      <textarea
        id={id}
        rows={3}
        value={view.prompt}
        spellcheck={false}
        aria-invalid={view.promptProblem !== ""}
        aria-describedby={`${id}-hint`}
        onInput={(event) => actions.type({ prompt: event.currentTarget.value })}
      >
      </textarea>
      <small id={`${id}-hint`} class={view.promptProblem === "" ? "" : "try-problem"}>
        {view.promptProblem || view.promptHint}
      </small>
    </div>
  );
}

function NumberInput({ field, onType }: { field: FieldView; onType: (text: string) => void }) {
  const id = useId();
  return (
    <div class="try-field">
      <label for={id}>{field.label}</label>
      <input
        id={id}
        value={field.value}
        inputMode={field.whole ? "numeric" : "decimal"}
        autocomplete="off"
        aria-invalid={field.problem !== ""}
        aria-describedby={`${id}-hint`}
        onInput={(event) => onType(event.currentTarget.value)}
      />
      <small id={`${id}-hint`} class={field.problem === "" ? "" : "try-problem"}>
        {field.problem || field.hint}
      </small>
    </div>
  );
}

/** Long texts scroll, and the keyboard can scroll them too. It is no live region: a text of letters would be read in letters. */
function Output({ output, busy }: { output: NonNullable<GenerateView["output"]>; busy: boolean }) {
  return (
    <div class="sample">
      <blockquote tabIndex={0} role="region" aria-label="Text of the model" aria-busy={busy}>
        <span class="try-prompt">{output.prompt}</span>
        {output.text}
      </blockquote>
      <p class="quiet">{output.about}</p>
    </div>
  );
}
