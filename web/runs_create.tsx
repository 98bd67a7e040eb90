// The form for a new run, checked while it is filled in, and what the run would take. Draws view_model_create.ts and reports what is
// typed; it keeps nothing but what is unfolded. Loaded only when somebody wants to make a run.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useEffect, useRef } from "preact/hooks";
import { Facts, ScrollRegion, ToneIcon } from "./parts.tsx";
import { RUN_NAME_CHARS_MAX } from "../peer/wire/hub.ts";
import {
  type CreateModel,
  createView,
  type EstimateView,
  type FieldView,
  type Template,
  TEMPLATES,
} from "./view_model_create.ts";

export interface CreateActions {
  /** Whatever of the form has changed. */
  learn(part: Partial<CreateModel>): void;
  send(): void;
  cancel(): void;
}

interface FormProps {
  model: CreateModel;
  actions: CreateActions;
}

export function CreateForm({ model, actions }: FormProps) {
  const view = createView(model);
  const heading = useRef<HTMLHeadingElement>(null);
  // Whoever opened the form with the keyboard goes on from here.
  useEffect(() => heading.current?.focus(), [model.cloneOf]);
  const set = (field: FieldView, text: string) =>
    actions.learn({ values: { ...model.values, [field.key]: text } });
  function send(event: Event): void {
    event.preventDefault();
    actions.send();
  }
  return (
    <section class="panel create" aria-labelledby="create-title">
      <h2 id="create-title" ref={heading} tabIndex={-1}>{view.title}</h2>
      <form class="columns" noValidate onSubmit={send}>
        <div class="create-fields">
          {model.cloneOf === null && <Templates model={model} actions={actions} />}
          <Naming model={model} error={view.nameError} actions={actions} />
          {model.cloneOf !== null && <Weights model={model} actions={actions} />}
          <div class="fields">
            {view.simple.map((field) => <Field key={field.key} field={field} set={set} />)}
          </div>
          <details open={view.unfold || undefined}>
            <summary>Everything else</summary>
            {view.folded.map(({ title, fields }) => (
              <fieldset key={title}>
                <legend>{title}</legend>
                <div class="fields">
                  {fields.map((field) => <Field key={field.key} field={field} set={set} />)}
                </div>
              </fieldset>
            ))}
          </details>
        </div>
        <div class="create-side">
          <Supposed model={model} measured={view.measured} actions={actions} />
          {view.estimate && <EstimatePanel view={view.estimate} />}
          {view.errors.map((text) => (
            <p key={text} class="alert alert-bad">
              <ToneIcon tone="bad" /> {text}
            </p>
          ))}
          <p class="quiet" role="status">{view.status}</p>
          <p class="actions">
            <button type="submit" class="primary" disabled={!view.canCreate}>Start this run</button>
            <button type="button" class="plain" onClick={actions.cancel}>Close the form</button>
          </p>
        </div>
      </form>
    </section>
  );
}

function Templates({ model, actions }: FormProps) {
  const same = (template: Template) => JSON.stringify(template.values) === JSON.stringify(model.values);
  return (
    <fieldset class="templates">
      <legend>Begin with</legend>
      {TEMPLATES.map((template) => (
        <button
          key={template.id}
          type="button"
          aria-pressed={same(template)}
          onClick={() => actions.learn({ values: template.values })}
        >
          {template.title} <small>{template.text}</small>
        </button>
      ))}
    </fieldset>
  );
}

function Naming({ model, error, actions }: FormProps & { error: string | null }) {
  return (
    <div class="fields">
      <div class="field wide-field">
        <label for="run-name">Name, as those who join read it</label>
        <input
          id="run-name"
          value={model.name}
          maxLength={RUN_NAME_CHARS_MAX}
          autocomplete="off"
          aria-invalid={error !== null}
          aria-describedby={error === null ? undefined : "run-name-error"}
          onInput={(event) => actions.learn({ name: event.currentTarget.value })}
        />
        {error && <small id="run-name-error" class="field-error">{error}</small>}
      </div>
      <div class="field check wide-field">
        <input
          id="run-listed"
          type="checkbox"
          checked={model.listed}
          onChange={(event) => actions.learn({ listed: event.currentTarget.checked })}
        />
        <label for="run-listed">Show it to everybody who opens this page</label>
      </div>
      <div class="field check wide-field">
        <input
          id="run-public-text"
          type="checkbox"
          checked={model.publicText}
          onChange={(event) => actions.learn({ publicText: event.currentTarget.checked })}
        />
        <label for="run-public-text">Whoever has its join link may write text with the model, too</label>
      </div>
    </div>
  );
}

function Weights({ model, actions }: FormProps) {
  return (
    <div class="field check">
      <input
        id="run-weights"
        type="checkbox"
        checked={model.withWeights}
        aria-describedby="run-weights-help"
        onChange={(event) => actions.learn({ withWeights: event.currentTarget.checked })}
      />
      <label for="run-weights">Begin with the weights of its newest checkpoint</label>
      <small id="run-weights-help">
        The model keeps its shape then; step, learning rate and optimizer begin anew, and the text must use
        the same tokens.
      </small>
    </div>
  );
}

interface FieldProps {
  field: FieldView;
  set: (field: FieldView, text: string) => void;
}

function Field({ field, set }: FieldProps) {
  const { key, label, help, error, value, options, locked, usual } = field;
  const id = `key-${key}`;
  const described = [help && `${id}-help`, error && `${id}-error`].filter(Boolean).join(" ");
  const about = {
    ...{ id, disabled: locked, "aria-invalid": error !== null },
    ...(described === "" ? {} : { "aria-describedby": described }),
  };
  return (
    <div class={key === "dataset" ? "field wide-field" : "field"}>
      <label for={id}>
        {label} <code>{key}</code>
      </label>
      {options === null
        ? (
          <input
            {...about}
            value={value}
            placeholder={usual}
            autocomplete="off"
            onInput={(event) => set(field, event.currentTarget.value)}
          />
        )
        : (
          <select {...about} value={value} onChange={(event) => set(field, event.currentTarget.value)}>
            {options.map((option) => <option key={option.value} value={option.value}>{option.text}</option>)}
          </select>
        )}
      {help && <small id={`${id}-help`}>{help}</small>}
      {error && <small id={`${id}-error`} class="field-error">{error}</small>}
    </div>
  );
}

function Supposed({ model, measured, actions }: FormProps & { measured: string }) {
  return (
    <fieldset>
      <legend>A computer that joins offers about</legend>
      <div class="fields">
        <div class="field">
          <label for="offer">Memory, GB</label>
          <input
            id="offer"
            inputMode="decimal"
            value={model.offer}
            autocomplete="off"
            onInput={(event) => actions.learn({ offer: event.currentTarget.value.trim() })}
          />
        </div>
        <div class="field">
          <label for="gflops">Speed, billion operations a second</label>
          <input
            id="gflops"
            inputMode="decimal"
            value={model.gflops}
            autocomplete="off"
            aria-describedby="gflops-help"
            onInput={(event) => actions.learn({ gflops: event.currentTarget.value.trim() })}
          />
          <small id="gflops-help">
            {measured || "An old laptop 20, a new one 100 to 500, a graphics card thousands."}
          </small>
        </div>
      </div>
    </fieldset>
  );
}

function EstimatePanel({ view }: { view: EstimateView }) {
  return (
    <div class="estimate">
      <p class={view.fits ? "headline" : "headline field-error"}>
        <ToneIcon tone={view.fits ? "good" : "bad"} /> {view.headline}
      </p>
      <Facts facts={view.facts} />
      {view.stages.length > 0 && (
        <ScrollRegion label="Memory of each stage">
          <table>
            <thead>
              <tr>{["Stage", "Holds", "Memory", "On"].map((it) => <th scope="col" key={it}>{it}</th>)}</tr>
            </thead>
            <tbody>
              {view.stages.map((stage) => (
                <tr key={stage.key}>
                  <th scope="row">{stage.name}</th>
                  <td>{stage.holds}</td>
                  <td>{stage.memory}</td>
                  <td>{stage.peers}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </ScrollRegion>
      )}
      <p class="quiet">{view.supposed}</p>
    </div>
  );
}
