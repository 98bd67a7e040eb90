// What a peer does beside the training itself: keeps snapshots, measures links, writes texts. Hands each of them its messages, its
// frames and its links. Not the protocol of any of them. What must stay true: none of them may end the session.
import type { Holder } from "./holder.ts";
import type { LinkHost, LinkStats } from "./net/link.ts";
import { Prober } from "./prober.ts";
import type { SessionFacts, SessionOptions } from "./session_facts.ts";
import { PeerSnapshots, type PeerSnapshotsOptions } from "./snapshots.ts";
import type { CoordinatorMessage, PeerMessage, Welcome } from "./wire/control.ts";
import type { FrameHeader } from "./wire/frame.ts";
import type { WriteOrder } from "./wire/texts.ts";
import { type WeightsOf, Writer } from "./writer.ts";

/** After a job of this length what has come from others is looked at, which costs a timer's millisecond or four. */
const LONG_JOB_MS = 40;

export interface SidelinesOptions {
  welcome: Welcome;
  session: SessionOptions;
  host: Pick<LinkHost, "connect" | "send" | "stats">;
  say(message: PeerMessage): void;
  upload: PeerSnapshotsOptions["upload"];
  /** What its owner wants now. */
  facts: Pick<SessionFacts, "paused" | "leaving" | "writes">;
  /** A job is being done. */
  busy(): boolean;
  holder: Pick<Holder, "instances" | "memoryBytes">;
  weightsOf: WeightsOf | undefined;
  /** Runs something once the jobs that are asked for so far are done. */
  afterJobs(run: () => Promise<void>): void;
}

export class Sidelines {
  readonly snapshots: PeerSnapshots;
  readonly prober: Prober;
  readonly writer: Writer;
  readonly #o: SidelinesOptions;

  constructor(options: SidelinesOptions) {
    const { welcome, session, host, say, upload, facts, busy, holder, weightsOf } = options;
    const { peer: self, incarnation, config: { iceServers }, spec } = welcome;
    const { memoryBytes, gate, states = null } = session;
    this.#o = options;
    const mayWork = () => !facts.paused && !facts.leaving;
    const about = { self, incarnation, iceServers, host, say };
    this.prober = new Prober({ ...about, mayProbe: mayWork });
    this.snapshots = new PeerSnapshots({ welcome, memoryBytes, states, host, say, upload });
    const room = () => memoryBytes - holder.memoryBytes() - this.snapshots.desk.bytes - this.writer.bytes;
    this.writer = new Writer({ ...about, spec, room, weightsOf, mayWrite: mayWork, busy, gate });
  }

  /** True for a message that is theirs; who has to export a state for one is not this part's business. */
  hear(message: CoordinatorMessage): boolean {
    if (message.type === "keep" || message.type === "restore") this.snapshots.order(message);
    else if (message.type === "probe") this.prober.order(message.peer);
    else if (message.type === "write") this.#write(message.order);
    else return false;
    return true;
  }

  /** True for a frame that is theirs. */
  receive(from: string, header: FrameHeader, payload: Uint8Array): boolean {
    if (header.kind === "snapshot") this.snapshots.receive(from, payload);
    else if (header.kind === "text") this.writer.receive(from, header, payload);
    return header.kind === "snapshot" || header.kind === "text" || header.kind === "probe";
  }

  link(peer: string, open: boolean): void {
    this.snapshots.link(peer, open);
    this.writer.link(peer, open);
  }

  /** Now and then, with the newest counters of all links. */
  tick(links: Record<string, LinkStats>): void {
    this.snapshots.measure(links);
    this.writer.tick();
    this.#o.facts.writes = this.writer.active;
  }

  needs(peer: string): boolean {
    return this.snapshots.desk.needs(peer) || this.writer.needs(peer);
  }

  /** After each job, before the training goes on: a state is only for so long what it is. */
  async settle(): Promise<void> {
    if (this.writer.waits) await this.writer.settle(this.#o.holder.instances());
  }

  /** A job of the training took so long, and what follows from it is said. */
  async afterJob(ms: number): Promise<void> {
    if (!this.writer.active) return;
    // An engine on this thread lets nothing in by itself, and rows that have come would wait for the end of the step.
    if (ms >= LONG_JOB_MS) await new Promise((resolve) => setTimeout(resolve));
    const more = this.writer.afterJob(ms);
    if (more > 0) this.#o.session.gate?.after(ms + more);
  }

  #write(order: WriteOrder): void {
    this.writer.order(order);
    if (order.order === "open") this.#o.afterJobs(() => this.settle());
  }

  close(): void {
    this.snapshots.close();
    this.prober.close();
    this.writer.clear();
  }
}
