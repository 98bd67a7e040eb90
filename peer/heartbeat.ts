// What a peer tells of itself four times a second: its pace, its traffic, and what departures and snapshots have cost it. A
// pure function of a session's parts.
import type { PeerCore } from "./core/peer_core.ts";
import type { SnapshotDesk } from "./core/snapshots.ts";
import type { Holder } from "./holder.ts";
import type { LinkStats } from "./net/link.ts";
import type { SessionFacts } from "./session_facts.ts";
import type { PeerMessage } from "./wire/control.ts";

export interface HeartbeatParts {
  facts: SessionFacts;
  core: PeerCore | null;
  holder: Holder | null;
  desk: SnapshotDesk | null;
  /** Bytes sent again because of departures. */
  recoveryBytes: number;
  /** Operations and links, as measured. */
  figures: Pick<Heartbeat, "ops" | "links">;
}

type Heartbeat = PeerMessage & { type: "heartbeat" };

export function heartbeatOf(parts: HeartbeatParts): Heartbeat {
  const { facts, core, holder, desk, recoveryBytes, figures } = parts;
  const all = Object.values(facts.links);
  const sum = (pick: (link: LinkStats) => number) => all.reduce((total, link) => total + pick(link), 0);
  const relayed = all.filter((link) => link.path === "relay").length;
  return {
    type: "heartbeat",
    stepMs: facts.ownStepMs,
    bytesUp: sum((link) => link.bytesUp),
    bytesDown: sum((link) => link.bytesDown),
    direct: all.length - relayed,
    relayed,
    hidden: facts.hidden,
    recomputed: core?.state.recomputed ?? 0,
    recoveryBytes,
    retainedBytes: (holder?.retainedBytes() ?? 0) + (desk?.bytes ?? 0),
    fenced: (core?.state.fenced ?? 0) + (desk?.refused ?? 0),
    snapshotBytes: desk?.core.sender.counts.bytes ?? 0,
    snapshotSpared: desk?.core.sender.counts.chunksSpared ?? 0,
    ...figures,
  };
}
