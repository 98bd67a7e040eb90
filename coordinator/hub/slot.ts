// One run of a coordinator that has several: its folder and card, what its log says while it is closed, the open run while it is
// open, and whether it failed. Opens and closes it; decides nothing about the others.
import { join } from "node:path";
import { planResume } from "../cli/resume_plan.ts";
import type { CoordinatorEventLine } from "../core/run_state.ts";
import { type OpenRun, openRun, type OpenRunOptions } from "../main.ts";
import { writeAccess } from "../store/access.ts";
import { lookAtRunLog } from "../store/run_log.ts";
import { paramCount } from "../../peer/model/layout.ts";
import { messageOf } from "../../peer/wire/errors.ts";
import type { HubRun, RunPlace } from "../../peer/wire/hub.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { readCard, type RunCard, writeCard } from "./card.ts";

/** After a stop: one step, one evaluation and one checkpoint; peers that hang must not hold the end up for ever. */
const LAST_CHECKPOINT_MS = 60_000;
/** Between two looks whether it is there. */
const LOOK_MS = 50;

/** Of a run that is closed, by its log. */
export interface Known {
  config: RunConfig;
  spec: ModelSpec;
  corpusHash: string;
  vocabHash: string | undefined;
  committed: number;
  ended: boolean;
}

export interface SlotOptions {
  id: string;
  folder: string;
  webRoot: string;
  /** Scheme, host and port that links carry. */
  base(): string;
  /** The port that the run's links carry; 0 before it is known. */
  port(): number;
  onEvent(id: string, line: CoordinatorEventLine): void;
  onNote(id: string, text: string): void;
}

export class Slot {
  readonly id: string;
  readonly folder: string;
  card: RunCard;
  run: OpenRun | null = null;
  /** Why it is not open, though it should be. */
  failure: string | null = null;
  /** What is being done with it; empty: nothing. */
  busy = "";
  known: Known | null = null;
  /** Peers were told to end, so nobody waits to come back. */
  #dismissed = false;
  readonly #options: SlotOptions;
  /** Of the model whose parameters were counted last: a list is asked for every second. */
  #counted: { spec: ModelSpec; params: number } | null = null;

  constructor(options: SlotOptions, absent: RunCard) {
    this.#options = options;
    this.id = options.id;
    this.folder = options.folder;
    this.card = readCard(options.folder, absent);
  }

  get place(): RunPlace {
    if (this.run !== null) return "open";
    if (this.card.archived) return "archived";
    return this.failure === null ? "closed" : "broken";
  }

  /** What its log says; a damaged one is its failure. */
  look(): Known | null {
    try {
      const found = lookAtRunLog(this.folder)?.run;
      if (found === undefined) return null;
      const { config, spec, corpusHash, vocabHash, committed, ended } = found;
      this.known = { config, spec, corpusHash, vocabHash, committed, ended: ended !== null };
    } catch (error) {
      this.failure = messageOf(error);
    }
    return this.known;
  }

  keep(change: Partial<RunCard>): void {
    this.card = { ...this.card, ...change };
    writeCard(this.folder, this.card);
  }

  /** A new run, or one that begins with a checkpoint in its folder. @throws {ShoalError} why it cannot begin */
  async begin(config: RunConfig, resumeFrom?: string): Promise<void> {
    await this.#open({ config, ...(resumeFrom === undefined ? {} : { resumeFrom }) });
  }

  /** Goes on with the run in the folder, as `shoal resume` does. @throws {ShoalError} why it cannot */
  async resume(): Promise<void> {
    const { config, resumeFrom, restore, note } = await planResume(this.folder, {
      changed: this.#dismissed,
      nowMs: Date.now(),
    });
    await this.#open({ config, restore, ...(resumeFrom === null ? {} : { resumeFrom }) });
    this.#options.onNote(this.id, note);
    const { committed, target } = this.run!.shell.core.state;
    // Nothing is left to train: it is open to be looked at and exported, and waits for nobody.
    if (committed >= target) this.run!.shell.feed({ type: "admin", action: "stop" });
  }

  async #open(how: Pick<OpenRunOptions, "config" | "resumeFrom" | "restore">): Promise<void> {
    const { id, folder } = this;
    const { webRoot, base, onEvent } = this.#options;
    const { name: runName, operator, publicText } = this.card;
    const mount = `/r/${id}`;
    const options: OpenRunOptions = {
      ...{
        ...how,
        outDir: folder,
        operator,
        runName,
        publicText,
        webRoot,
        corporaDir: join(folder, "..", "corpora"),
      },
      onEvent: (line) => onEvent(id, line),
      onFailure: (error) => this.#fail(error),
    };
    this.failure = null;
    this.#dismissed = false;
    this.run = await openRun(options, { base: () => base() + mount, mount });
    writeAccess(folder, { ...this.run.access, port: this.#options.port() || this.run.access.port });
  }

  /** The others go on; what it had committed is in its log. */
  #fail(error: unknown): void {
    this.failure = `it failed by a mistake of the program: ${
      messageOf(error)
    }; open it again to go on from its log`;
    this.#options.onNote(this.id, this.failure);
    void this.close("the run has failed; its organizer can open it again").catch(() => {});
  }

  /** Peers hear the reason and end by themselves. */
  async close(reason: string): Promise<void> {
    const { run } = this;
    this.run = null;
    this.#dismissed ||= run !== null;
    // Its organizers may have said otherwise meanwhile; lists show it while it is closed, too.
    const publicText = run?.isTextPublic() ?? this.card.publicText;
    if (publicText !== this.card.publicText) this.keep({ publicText });
    await run?.close(reason);
    this.look();
  }

  /**
   * Ends the run with a checkpoint, if anybody is there to bring the state; a run that waits for peers has nothing newer than its
   * last one. Says whether the checkpoint was waited for in vain.
   */
  async finish(): Promise<"ended" | "late"> {
    const { run } = this;
    if (run === null) return "ended";
    const { peers, committed, status } = run.shell.core.state;
    const ended = status === "finished" || status === "failed";
    if (ended || committed === 0 || Object.keys(peers).length === 0) return "ended";
    run.shell.feed({ type: "admin", action: "stop" });
    let over = false;
    void run.shell.ended.then(() => over = true);
    for (let waited = 0; waited < LAST_CHECKPOINT_MS; waited += LOOK_MS) {
      // Who was to bring the state may leave meanwhile; then there is nothing to wait for.
      if (over || Object.keys(run.shell.core.state.peers).length === 0) return "ended";
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return "late";
  }

  /** As the list shows it; links only to whoever may have them. */
  row(admin: boolean): HubRun {
    const { id, place, busy, run, known } = this;
    const { name, operator, listed, publicText, createdAt } = this.card;
    const status = run?.shell.status() ?? null;
    const spec = run?.shell.core.state.spec ?? known?.spec;
    return {
      ...{ id, name, operator, place, busy, listed, createdAt },
      publicText: run?.isTextPublic() ?? publicText,
      state: status?.state ?? null,
      reason: status?.reason ?? this.#why(),
      step: status?.step ?? known?.committed ?? 0,
      maxIters: status?.maxIters ?? known?.config.max_iters ?? 0,
      peers: status?.peers.length ?? 0,
      params: spec === undefined ? 0 : this.#paramsOf(spec),
      ...{ trainLoss: status?.trainLoss ?? null, valLoss: status?.valLoss ?? null },
      dataset: status?.config.dataset ?? known?.config.dataset ?? "",
      joinLink: run?.isPublic() === true ? run.joinLink() : null,
      adminLink: admin ? run?.adminLink() ?? null : null,
    };
  }

  #paramsOf(spec: ModelSpec): number {
    if (this.#counted?.spec !== spec) this.#counted = { spec, params: paramCount(spec) };
    return this.#counted.params;
  }

  #why(): string {
    if (this.failure !== null) return this.failure;
    if (this.card.archived) return "it is put away; bring it back to go on";
    return this.known?.ended === true ? "it has ended" : "";
  }
}
