// What the organizer changes in mid-run: alerts, the form for the configuration with its difference, the end of the run, and
// private invitations. Draws view_model_orders.ts and reports orders; a form's own text is the only state here.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useSignal } from "@preact/signals";
import { QrCode } from "./admin_lists.tsx";
import { ConfirmButton } from "./confirm.tsx";
import { ToneIcon } from "./parts.tsx";
import type { ChangeableKey } from "../peer/wire/changes.ts";
import type { RunStatus } from "../peer/wire/status.ts";
import { type Alert, draftView, type InvitationsView, type OrdersView } from "./view_model_orders.ts";

export interface OrderActions {
  change(step: number, set: Record<string, unknown>): void;
  stopAt(step: number): void;
  invite(what: { seats: number; hours: number; note: string }): void;
  withdraw(id: string): void;
  openPublic(open: boolean): void;
  openText(open: boolean): void;
  copy(link: string): void;
}

export function Alerts({ alerts }: { alerts: Alert[] }) {
  if (alerts.length === 0) return null;
  return (
    <ul class="alerts" aria-label="Alerts">
      {alerts.map((alert) => (
        <li key={alert.text} class={`alert alert-${alert.tone}`}>
          <ToneIcon tone={alert.tone} /> {alert.text}
        </li>
      ))}
    </ul>
  );
}

type Current = Pick<RunStatus, "config" | "step">;

interface OrdersProps {
  orders: OrdersView;
  current: Current;
  actions: OrderActions;
}

export function Orders({ orders, current, actions }: OrdersProps) {
  return (
    <section class="panel orders" aria-labelledby="orders-title">
      <h2 id="orders-title">Change the run</h2>
      {orders.changes.length === 0
        ? <p class="quiet">Nothing has been changed since it began.</p>
        : (
          <ul class="changes">
            {orders.changes.map((change) => (
              <li key={change.key}>
                <code>{change.text}</code> <small>{change.when}</small>
              </li>
            ))}
          </ul>
        )}
      {orders.open && <ChangeForm orders={orders} current={current} actions={actions} />}
      {orders.open && <StopForm soonest={orders.soonest} actions={actions} />}
    </section>
  );
}

function ChangeForm({ orders, current, actions }: OrdersProps) {
  const key = useSignal<ChangeableKey>("learning_rate");
  const text = useSignal("");
  const step = useSignal("");
  const from = step.value === "" ? String(orders.soonest) : step.value;
  const draft = text.value === ""
    ? null
    : draftView({ key: key.value, text: text.value, step: from }, current);
  function send(event: Event): void {
    event.preventDefault();
    if (draft?.ok !== true) return;
    actions.change(draft.step, draft.set);
    text.value = "";
  }
  return (
    <form class="order-form" onSubmit={send}>
      <label>
        Setting
        <select value={key.value} onChange={(it) => (key.value = it.currentTarget.value as ChangeableKey)}>
          {orders.keys.map((it) => <option key={it.key} value={it.key}>{it.key} ({it.value})</option>)}
        </select>
      </label>
      <label>
        New value
        <input
          value={text.value}
          autocomplete="off"
          onInput={(it) => (text.value = it.currentTarget.value)}
        />
      </label>
      <label>
        From step
        <input
          value={step.value}
          inputMode="numeric"
          autocomplete="off"
          placeholder={String(orders.soonest)}
          onInput={(it) => (step.value = it.currentTarget.value)}
        />
      </label>
      <button type="submit" disabled={draft?.ok !== true}>Change it</button>
      <p class={draft?.ok === false ? "draft draft-refused" : "draft"} aria-live="polite">
        {draft?.text ?? "What would change is shown here before it is ordered."}
      </p>
    </form>
  );
}

function StopForm({ soonest, actions }: { soonest: number; actions: OrderActions }) {
  const step = useSignal("");
  const wanted = Number(step.value);
  const fits = step.value.trim() !== "" && Number.isInteger(wanted) && wanted >= soonest;
  function send(event: Event): void {
    event.preventDefault();
    if (!fits) return;
    actions.stopAt(wanted);
    step.value = "";
  }
  return (
    <form class="order-form" onSubmit={send}>
      <label>
        End the run after step
        <input
          value={step.value}
          inputMode="numeric"
          autocomplete="off"
          onInput={(it) => (step.value = it.currentTarget.value)}
        />
      </label>
      <button type="submit" disabled={!fits}>Set the end</button>
    </form>
  );
}

export function InvitationList({ view, actions }: { view: InvitationsView | null; actions: OrderActions }) {
  if (view === null) return null;
  return (
    <section class="panel invitations" aria-labelledby="invitations-title">
      <h2 id="invitations-title">Private invitations</h2>
      <p>
        {view.open
          ? "The join link lets anybody in who has it. An invitation is for so many computers, for so long."
          : "By invitation only: the join link lets nobody in."}
      </p>
      {view.rows.length > 0 && (
        <ul class="invitation-rows">
          {view.rows.map((row) => (
            <li key={row.id}>
              <p>
                <strong>{row.title}</strong> <ToneIcon tone={row.tone} /> <small>{row.state}</small>
              </p>
              <p class="copy">
                <input
                  readOnly
                  aria-label={`Link of invitation ${row.id}`}
                  value={row.link}
                  onFocus={(event) => event.currentTarget.select()}
                />
                <button
                  type="button"
                  aria-label={`Copy the link of ${row.id}`}
                  onClick={() => actions.copy(row.link)}
                >
                  Copy
                </button>
                <ConfirmButton
                  label="Withdraw"
                  describedLabel={`Withdraw ${row.id}`}
                  title={`Withdraw ${row.title}?`}
                  text="Its link opens nothing any more, and computers that came in with it are put out."
                  confirm="Withdraw it"
                  onConfirm={() => actions.withdraw(row.id)}
                />
              </p>
              {row.usable && (
                <details>
                  <summary aria-label={`QR code of invitation ${row.id}`}>QR code</summary>
                  <QrCode text={row.link} of={`invitation ${row.id}`} />
                </details>
              )}
            </li>
          ))}
        </ul>
      )}
      <InviteForm actions={actions} />
      <button type="button" onClick={() => actions.openPublic(!view.open)}>
        {view.open ? "Close the public link" : "Open the public link"}
      </button>
      {view.text !== null && <TextSwitch open={view.text} actions={actions} />}
    </section>
  );
}

function TextSwitch({ open, actions }: { open: boolean; actions: OrderActions }) {
  return (
    <p>
      {open
        ? "Whoever may join may also write text with the model."
        : "Only organizers may write text with the model."}{" "}
      <button type="button" onClick={() => actions.openText(!open)}>
        {open ? "Keep writing text to organizers" : "Let whoever may join write text"}
      </button>
    </p>
  );
}

function InviteForm({ actions }: { actions: OrderActions }) {
  const note = useSignal("");
  const seats = useSignal("1");
  const hours = useSignal("24");
  const fits = Number.isInteger(Number(seats.value)) && Number(seats.value) >= 1 && Number(hours.value) > 0;
  function send(event: Event): void {
    event.preventDefault();
    if (!fits) return;
    actions.invite({ seats: Number(seats.value), hours: Number(hours.value), note: note.value.trim() });
    note.value = "";
  }
  return (
    <form class="order-form" onSubmit={send}>
      <label>
        For whom
        <input
          value={note.value}
          maxLength={80}
          autocomplete="off"
          onInput={(it) => (note.value = it.currentTarget.value)}
        />
      </label>
      <label>
        Computers
        <input
          value={seats.value}
          inputMode="numeric"
          onInput={(it) => (seats.value = it.currentTarget.value)}
        />
      </label>
      <label>
        Hours
        <input
          value={hours.value}
          inputMode="decimal"
          onInput={(it) => (hours.value = it.currentTarget.value)}
        />
      </label>
      <button type="submit" disabled={!fits}>Make an invitation</button>
    </form>
  );
}
