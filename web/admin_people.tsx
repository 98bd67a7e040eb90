// Who is kept out of the run, and who steers it: the list of bans with the order to lift them, and the admin links of further
// organizers. Draws view_model_people.ts; a form's own text is the only state here.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useSignal } from "@preact/signals";
import { ConfirmButton } from "./confirm.tsx";
import type { OrganizerRow, PeopleView } from "./view_model_people.ts";

export interface PeopleActions {
  lift(ban: string): void;
  nameOrganizer(name: string): void;
  withdrawOrganizer(id: string): void;
  copy(link: string): void;
}

export function People({ view, actions }: { view: PeopleView; actions: PeopleActions }) {
  return (
    <div class="columns">
      <section class="panel organizers" aria-labelledby="organizers-title">
        <h2 id="organizers-title">Who steers the run</h2>
        <p>
          The log says who ordered what. Orders of this page are by <strong>{view.you}</strong>.
        </p>
        {view.organizers.length > 0 && (
          <ul class="invitation-rows">
            {view.organizers.map((row) => (
              <li key={row.id}>
                <p>
                  <strong>{row.name}</strong>
                </p>
                {row.link !== null && <OrganizerLink row={row} link={row.link} actions={actions} />}
              </li>
            ))}
          </ul>
        )}
        {view.mayName && <NameForm actions={actions} />}
      </section>
      <section class="panel bans" aria-labelledby="bans-title">
        <h2 id="bans-title">Kept out</h2>
        {view.bans.length === 0 ? <p class="quiet">Nobody is kept out.</p> : (
          <ul class="invitation-rows">
            {view.bans.map((ban) => (
              <li key={ban.id}>
                <p>
                  <strong>{ban.peer}</strong> <small>{ban.text}</small>
                </p>
                <p>
                  <button
                    type="button"
                    aria-label={`Lift it for ${ban.peer}`}
                    onClick={() => actions.lift(ban.id)}
                  >
                    Lift it
                  </button>
                </p>
              </li>
            ))}
          </ul>
        )}
        <p class="quiet">
          A browser whose storage is cleared counts as another computer. A closed public link keeps that out,
          too.
        </p>
      </section>
    </div>
  );
}

interface OrganizerLinkProps {
  row: OrganizerRow;
  link: string;
  actions: PeopleActions;
}

function OrganizerLink({ row, link, actions }: OrganizerLinkProps) {
  return (
    <p class="copy">
      <input
        readOnly
        aria-label={`Admin link of ${row.name}`}
        value={link}
        onFocus={(event) => event.currentTarget.select()}
      />
      <button type="button" aria-label={`Copy the link of ${row.name}`} onClick={() => actions.copy(link)}>
        Copy
      </button>
      <ConfirmButton
        label="Withdraw"
        describedLabel={`Withdraw the link of ${row.name}`}
        title={`Withdraw the admin link of ${row.name}?`}
        text="It steers nothing any more. What was ordered with it stays as it is."
        confirm="Withdraw it"
        onConfirm={() => actions.withdrawOrganizer(row.id)}
      />
    </p>
  );
}

function NameForm({ actions }: { actions: PeopleActions }) {
  const name = useSignal("");
  function send(event: Event): void {
    event.preventDefault();
    if (name.value.trim() === "") return;
    actions.nameOrganizer(name.value.trim());
    name.value = "";
  }
  return (
    <form class="order-form" onSubmit={send}>
      <label>
        Name of another organizer
        <input
          value={name.value}
          maxLength={40}
          autocomplete="off"
          onInput={(it) => (name.value = it.currentTarget.value)}
        />
      </label>
      <button type="submit" disabled={name.value.trim() === ""}>Make an admin link</button>
    </form>
  );
}
