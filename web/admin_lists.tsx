// The lists of the admin page: peers, checkpoints, events, and the link that invites more peers.
// They draw what they are given; only the copy field touches the page, to select its text.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { type ExportActions, ExportButtons } from "./admin_exports.tsx";
import { useSignal } from "@preact/signals";
import { encode } from "uqr";
import { ConfirmButton } from "./confirm.tsx";
import { ScrollRegion, ToneIcon } from "./parts.tsx";
import { type BoardView, eventsLike, type PeerRow } from "./view_model_admin.ts";
import { STAYS } from "./view_model_people.ts";

const PEER_COLUMNS = [
  "Peer",
  "State",
  "Orders",
  "Role",
  "Adapter",
  "Block",
  "Per micro-batch",
  "Own step",
  "Traffic",
  "Links",
  "If it vanishes",
];

interface PeerTableProps {
  peers: PeerRow[];
  onDrain: (peer: string) => void;
  /** `stay`: one of STAYS. */
  onEvict: (peer: string, reason: string, stay: string) => void;
  /** `stage`: counted from 1, or "any". */
  onPin: (peer: string, stage: string) => void;
}

export function PeerTable({ peers, ...orders }: PeerTableProps) {
  return (
    <section class="panel" aria-labelledby="peers-title">
      <h2 id="peers-title">Peers</h2>
      {peers.length === 0
        ? <p class="quiet">Nobody has joined yet. Share the join link.</p>
        : (
          <ScrollRegion label="Table of peers">
            <table class="peers">
              <thead>
                <tr>{PEER_COLUMNS.map((column) => <th scope="col" key={column}>{column}</th>)}</tr>
              </thead>
              <tbody>
                {peers.map((peer) => <PeerLine key={peer.id} peer={peer} {...orders} />)}
              </tbody>
            </table>
          </ScrollRegion>
        )}
    </section>
  );
}

type PeerOrdersProps = Omit<PeerTableProps, "peers"> & { peer: PeerRow };

function PeerLine({ peer, ...orders }: PeerOrdersProps) {
  return (
    <tr>
      <th scope="row">
        {peer.id}
        <small>{peer.runtime}</small>
      </th>
      <td class="health">
        <ToneIcon tone={peer.tone} /> {peer.health}
      </td>
      <PeerOrders peer={peer} {...orders} />
      <td class="worded">
        {peer.role}
        {peer.pinned && <small>{peer.pinned}</small>}
      </td>
      <td class="worded">
        {peer.adapter}
        <small>{peer.engine}</small>
      </td>
      <td>{peer.block}</td>
      <td>
        {peer.operations.length === 0 && <span class="quiet">not yet</span>}
        {peer.operations.map(({ times, wait }) => (
          <span class="operation" key={times}>
            {times}
            <small>{wait}</small>
          </span>
        ))}
      </td>
      <td>{peer.step}</td>
      <td class="worded">
        {peer.traffic}
        {peer.kept && <small>{peer.kept}</small>}
      </td>
      <td>
        {peer.links}
        {peer.linkLines.length > 0 && <LinkLines peer={peer} />}
      </td>
      <td class="worded">{peer.loss}</td>
    </tr>
  );
}

function PeerOrders({ peer, onDrain, onEvict, onPin }: PeerOrdersProps) {
  return (
    <td class="peer-orders">
      <ConfirmButton
        label="Let go"
        describedLabel={`Let go ${peer.id}`}
        title={`Let ${peer.id} go?`}
        text="It goes as soon as others hold what it holds: nothing is lost, and it may take a few steps."
        confirm="Let it go"
        onConfirm={() => onDrain(peer.id)}
      />
      <ConfirmButton
        label="Remove"
        describedLabel={`Remove ${peer.id}`}
        title={`Remove ${peer.id} from the run?`}
        text={peer.removal}
        confirm="Remove it"
        field="Reason, told to its owner"
        choice={{ label: "It may come back", options: STAYS }}
        onConfirm={(reason, stay) => onEvict(peer.id, reason, stay)}
      />
      {peer.pins.length > 1 && (
        <ConfirmButton
          label="Pin"
          describedLabel={`Pin ${peer.id}`}
          title={`Which stage may ${peer.id} compute?`}
          text="The next plan follows this as far as memory allows; nothing moves before. Preview a new plan to see it."
          confirm="Set it"
          choice={{ label: "It computes", options: peer.pins }}
          onConfirm={(_, stage) => onPin(peer.id, stage)}
        />
      )}
    </td>
  );
}

/** Round trip, rate up and down, and path of each link. */
function LinkLines({ peer }: { peer: PeerRow }) {
  return (
    <details>
      <summary aria-label={`Links of ${peer.id}, measured`}>Measured</summary>
      <ul class="link-lines">{peer.linkLines.map((line) => <li key={line}>{line}</li>)}</ul>
    </details>
  );
}

interface CheckpointListProps {
  checkpoints: BoardView["checkpoints"];
  actions: ExportActions & {
    download(checkpoint: string, file: string): void;
    verify(checkpoint: string): void;
    rollBack(checkpoint: string): void;
    remove(checkpoint: string): void;
  };
}

export function CheckpointList({ checkpoints, actions }: CheckpointListProps) {
  return (
    <section class="panel" aria-labelledby="checkpoints-title">
      <h2 id="checkpoints-title">Checkpoints</h2>
      {checkpoints.length === 0 ? <p class="quiet">None written yet.</p> : (
        <ul class="checkpoints">
          {checkpoints.map((checkpoint) => (
            <li key={checkpoint.key}>
              <p>
                <strong>Step {checkpoint.step}</strong>
                <span>{checkpoint.size}, validation loss {checkpoint.val}</span>
              </p>
              <p class="files">
                {checkpoint.files.map((file) => (
                  <button
                    type="button"
                    key={file}
                    aria-label={`Download ${file} of ${checkpoint.name}`}
                    onClick={() => actions.download(checkpoint.name, file)}
                  >
                    {file}
                  </button>
                ))}
              </p>
              <ExportButtons checkpoint={checkpoint} actions={actions} />
              <CheckpointOrders checkpoint={checkpoint} actions={actions} />
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function CheckpointOrders(
  { checkpoint, actions }: {
    checkpoint: BoardView["checkpoints"][number];
    actions: CheckpointListProps["actions"];
  },
) {
  const { name, step } = checkpoint;
  return (
    <p class="checkpoint-orders">
      <button type="button" aria-label={`Verify ${name}`} onClick={() => actions.verify(name)}>Verify</button>
      {checkpoint.mayGoBack && (
        <ConfirmButton
          label="Go back"
          describedLabel={`Go back to ${name}`}
          title={`Go back to step ${step}?`}
          text="Training goes on from there. What came after it is forgotten, and so are later changes of the run."
          confirm="Go back"
          onConfirm={() => actions.rollBack(name)}
        />
      )}
      <ConfirmButton
        label="Delete"
        describedLabel={`Delete ${name}`}
        title={`Delete the checkpoint of step ${step}?`}
        text="Its files are removed from the coordinator’s disk. Download what you want to keep first."
        confirm="Delete it"
        onConfirm={() => actions.remove(name)}
      />
    </p>
  );
}

export function JoinPanel({ link, onCopy }: { link: string; onCopy: (link: string) => void }) {
  return (
    <section class="panel join" aria-labelledby="join-title">
      <h2 id="join-title">Invite a computer</h2>
      <p>
        Whoever has this link can lend a computer. Open it in a browser, scan it with a phone, or, without a
        browser, run <code>shoal peer --join "LINK"</code>.
      </p>
      <label for="join-link">Join link</label>
      <p class="copy">
        <input id="join-link" readOnly value={link} onFocus={(event) => event.currentTarget.select()} />
        <button type="button" onClick={() => onCopy(link)}>Copy</button>
      </p>
      <QrCode text={link} of="the join link" />
    </section>
  );
}

/** One path, dark on white in both themes: scanners expect it so. */
export function QrCode({ text, of }: { text: string; of: string }) {
  const { data, size } = encode(text, { ecc: "M", border: 3 });
  const path = data.flatMap((row, y) => row.map((dark, x) => dark ? `M${x} ${y}h1v1h-1z` : "")).join("");
  return (
    <svg class="qr" viewBox={`0 0 ${size} ${size}`} role="img" aria-label={`QR code of ${of}`}>
      <rect width={size} height={size} fill="#fff" />
      <path d={path} fill="#000" shape-rendering="crispEdges" />
    </svg>
  );
}

export function EventLog({ events }: { events: BoardView["events"] }) {
  const wanted = useSignal("");
  const shown = eventsLike(events, wanted.value);
  return (
    <section class="panel" aria-labelledby="events-title">
      <h2 id="events-title">Events</h2>
      {events.length === 0 ? <p class="quiet">Nothing has happened yet.</p> : (
        <>
          <label class="asked">
            Only those with
            <input
              type="search"
              value={wanted.value}
              autocomplete="off"
              placeholder="departure, tab-3, checkpoint…"
              onInput={(it) => (wanted.value = it.currentTarget.value)}
            />
          </label>
          {shown.length === 0 && <p class="quiet">None of the newest {events.length} events has that.</p>}
          {shown.length > 0 && (
            <ScrollRegion label="Newest events">
              <ol class="events">
                {shown.map((event) => (
                  <li key={event.key}>
                    <time>{event.at}</time>
                    <span class="event-kind">{event.kind}</span>
                    <span>{event.text}</span>
                  </li>
                ))}
              </ol>
            </ScrollRegion>
          )}
        </>
      )}
    </section>
  );
}
