// The lists of the admin page: peers, checkpoints, events, and the link that invites more peers.
// They draw what they are given; only the copy field touches the page, to select its text.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { encode } from "uqr";
import { ConfirmButton } from "./confirm.tsx";
import { ScrollRegion, ToneIcon } from "./parts.tsx";
import type { BoardView, PeerRow } from "./view_model_admin.ts";

const PEER_COLUMNS = [
  "Peer",
  "State",
  "Role",
  "Adapter",
  "Block",
  "Own step",
  "Traffic",
  "Links",
  "If it vanishes",
  "Remove",
];

export function PeerTable({ peers, onEvict }: { peers: PeerRow[]; onEvict: (peer: string) => void }) {
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
              <tbody>{peers.map((peer) => <PeerLine key={peer.id} peer={peer} onEvict={onEvict} />)}</tbody>
            </table>
          </ScrollRegion>
        )}
    </section>
  );
}

function PeerLine({ peer, onEvict }: { peer: PeerRow; onEvict: (peer: string) => void }) {
  return (
    <tr>
      <th scope="row">
        {peer.id}
        <small>{peer.runtime}</small>
      </th>
      <td class="health">
        <ToneIcon tone={peer.tone} /> {peer.health}
      </td>
      <td>{peer.role}</td>
      <td>
        {peer.adapter}
        <small>{peer.engine}</small>
      </td>
      <td>{peer.block}</td>
      <td>{peer.step}</td>
      <td>
        {peer.traffic}
        {peer.kept && <small>{peer.kept}</small>}
      </td>
      <td>{peer.links}</td>
      <td>{peer.loss}</td>
      <td>
        <ConfirmButton
          label="Remove"
          describedLabel={`Remove ${peer.id}`}
          title={`Remove ${peer.id} from the run?`}
          text={peer.removal}
          confirm="Remove it"
          onConfirm={() => onEvict(peer.id)}
        />
      </td>
    </tr>
  );
}

interface CheckpointListProps {
  checkpoints: BoardView["checkpoints"];
  onDownload: (checkpoint: string, file: string) => void;
}

export function CheckpointList({ checkpoints, onDownload }: CheckpointListProps) {
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
                    onClick={() => onDownload(checkpoint.name, file)}
                  >
                    {file}
                  </button>
                ))}
              </p>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

export function JoinPanel({ link, onCopy }: { link: string; onCopy: (link: string) => void }) {
  return (
    <section class="panel join" aria-labelledby="join-title">
      <h2 id="join-title">Invite a computer</h2>
      <p>
        Whoever has this link can lend a computer. Open it in a tab, scan it, or give it to the Deno peer.
      </p>
      <label for="join-link">Join link</label>
      <p class="copy">
        <input id="join-link" readOnly value={link} onFocus={(event) => event.currentTarget.select()} />
        <button type="button" onClick={() => onCopy(link)}>Copy</button>
      </p>
      <QrCode text={link} />
    </section>
  );
}

/** One path, dark on white in both themes: scanners expect it so. */
function QrCode({ text }: { text: string }) {
  const { data, size } = encode(text, { ecc: "M", border: 3 });
  const path = data.flatMap((row, y) => row.map((dark, x) => dark ? `M${x} ${y}h1v1h-1z` : "")).join("");
  return (
    <svg class="qr" viewBox={`0 0 ${size} ${size}`} role="img" aria-label="QR code of the join link">
      <rect width={size} height={size} fill="#fff" />
      <path d={path} fill="#000" shape-rendering="crispEdges" />
    </svg>
  );
}

export function EventLog({ events }: { events: BoardView["events"] }) {
  return (
    <section class="panel" aria-labelledby="events-title">
      <h2 id="events-title">Events</h2>
      {events.length === 0
        ? <p class="quiet">Nothing has happened yet.</p>
        : (
          <ScrollRegion label="Newest events">
            <ol class="events">
              {events.map((event) => (
                <li key={event.key}>
                  <time>{event.at}</time>
                  <span class="event-kind">{event.kind}</span>
                  <span>{event.text}</span>
                </li>
              ))}
            </ol>
          </ScrollRegion>
        )}
    </section>
  );
}
