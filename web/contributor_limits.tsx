// The form of a computer's limits, the contribution's panel, and what else an owner may set. Draws what it is given and
// reports changes; view_model_tab_limits.ts says what a change means.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useMemo } from "preact/hooks";
import { NAME_CHARS_MAX } from "../peer/wire/limits.ts";
import { ConfirmButton } from "./confirm.tsx";
import { Facts } from "./parts.tsx";
import type { LiveView } from "./view_model_tab.ts";
import type { Field, FieldId, LimitsView } from "./view_model_tab_limits.ts";

export interface LimitActions {
  change(id: FieldId, text: string): void;
  setName(name: string): void;
  setWakeLock(on: boolean): void;
  withdraw(): void;
  copyDiagnostics(): void;
}

/**
 * Drawn anew only when a limit has changed: the page is drawn four times a second, and what is being typed must stay.
 */
export function LimitsForm({ view, change }: { view: LimitsView; change: LimitActions["change"] }) {
  return useMemo(() => <Form view={view} change={change} />, [JSON.stringify(view)]);
}

function Form({ view, change }: { view: LimitsView; change: LimitActions["change"] }) {
  return (
    <div class="limits">
      {view.simple.map((field) => <Control key={field.id} field={field} change={change} />)}
      <details>
        <summary>More limits</summary>
        {view.advanced.map(({ title, fields }) => (
          <fieldset key={title}>
            <legend>{title}</legend>
            <div class="fields">
              {fields.map((field) => <Control key={field.id} field={field} change={change} />)}
            </div>
          </fieldset>
        ))}
      </details>
      <p class="quiet">{view.summary}</p>
    </div>
  );
}

interface ControlProps {
  field: Field;
  change: LimitActions["change"];
}

function Control({ field, change }: ControlProps) {
  return field.kind === "check"
    ? <Check field={field} change={change} />
    : <Entry field={field} change={change} />;
}

function Check({ field, change }: ControlProps) {
  const id = `limit-${field.id}`;
  return (
    <div class="field check">
      <input
        id={id}
        type="checkbox"
        checked={field.on}
        disabled={field.disabled}
        aria-describedby={field.help ? `${id}-help` : undefined}
        onChange={(event) => change(field.id, String(event.currentTarget.checked))}
      />
      <label for={id}>{field.label}</label>
      {field.help && <Help id={id} text={field.help} />}
    </div>
  );
}

function Entry({ field, change }: ControlProps) {
  const id = `limit-${field.id}`;
  return (
    <div class={`field ${field.kind}`}>
      <label for={id}>{field.label}</label>
      <span class="entry">
        <input
          id={id}
          type={field.kind === "check" ? "checkbox" : field.kind}
          value={field.value}
          disabled={field.disabled}
          placeholder={field.kind === "number" ? "no limit" : undefined}
          min={field.kind === "time" ? undefined : field.min}
          max={field.max > 0 ? field.max : undefined}
          step={field.kind === "range" ? 10 : undefined}
          aria-describedby={field.help ? `${id}-help` : undefined}
          aria-valuetext={field.kind === "range" ? field.unit : undefined}
          onChange={(event) => change(field.id, event.currentTarget.value)}
          onInput={field.kind === "range"
            ? (event) => change(field.id, event.currentTarget.value)
            : undefined}
        />
        {field.unit && <span class="unit">{field.unit}</span>}
      </span>
      {field.help && <Help id={id} text={field.help} />}
    </div>
  );
}

function Help({ id, text }: { id: string; text: string }) {
  return <small id={`${id}-help`}>{text}</small>;
}

interface NameProps {
  name: string;
  setName: LimitActions["setName"];
}

/** Drawn anew only when the name has changed, so that what is being typed stays. */
export function NameField({ name, setName }: NameProps) {
  return useMemo(() => <NameEntry name={name} setName={setName} />, [name]);
}

function NameEntry({ name, setName }: NameProps) {
  return (
    <div class="field">
      <label for="own-name">A name for this computer, if you like</label>
      <input
        id="own-name"
        type="text"
        value={name}
        maxLength={NAME_CHARS_MAX}
        autocomplete="off"
        aria-describedby="own-name-help"
        onChange={(event) => setName(event.currentTarget.value)}
      />
      <small id="own-name-help">
        Any name you choose; the run’s organizer sees it when this computer joins.
      </small>
    </div>
  );
}

export function LimitsPanel({ view, actions }: { view: LiveView; actions: LimitActions }) {
  const { on, disabled, help } = view.wakeLock;
  return (
    <section class="panel" aria-labelledby="limits-title">
      <h2 id="limits-title">Your limits</h2>
      <LimitsForm view={view.limits} change={actions.change} />
      <div class="field check">
        <input
          id="wake-lock"
          type="checkbox"
          checked={on}
          disabled={disabled}
          aria-describedby="wake-lock-help"
          onChange={(event) => actions.setWakeLock(event.currentTarget.checked)}
        />
        <label for="wake-lock">Keep the screen on</label>
        <Help id="wake-lock" text={help} />
      </div>
    </section>
  );
}

export function GivenPanel({ view, actions }: { view: LiveView; actions: LimitActions }) {
  return (
    <section class="panel" aria-labelledby="given-title">
      <h2 id="given-title">What you have given to this run</h2>
      <Facts facts={view.given.facts} />
      <NameField name={view.given.name} setName={actions.setName} />
      <p class="actions">
        <button type="button" onClick={actions.copyDiagnostics}>Copy diagnostics</button>
        <WithdrawButton withdraw={actions.withdraw} />
      </p>
    </section>
  );
}

export function WithdrawButton({ withdraw }: { withdraw: () => void }) {
  return (
    <ConfirmButton
      label="Withdraw"
      title="Withdraw your agreement?"
      text={"This computer leaves the run at once, and everything that this page has stored in this browser is deleted: " +
        "your agreement, limits and sums, the join link, and the copy of the model’s piece."}
      confirm="Withdraw and delete"
      onConfirm={withdraw}
    />
  );
}
