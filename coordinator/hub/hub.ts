// The runs of one coordinator: opens what its folder holds, makes new ones, puts away, brings back, deletes. One thing at a time for
// each run. What must stay true: nothing that goes wrong in one run, or in opening it, touches another.
import { dirname, join } from "node:path";
import { folderName } from "../cli/options.ts";
import { newestOf } from "../cli/checkpoint_path.ts";
import type { CoordinatorEventLine } from "../core/run_state.ts";
import { CORPUS_PREFIX } from "../corpora/types.ts";
import type { OpenRun } from "../main.ts";
import { lockFolder } from "../store/run_log.ts";
import { heldBytes, TokenFile } from "../store/token_store.ts";
import { paramCount } from "../../peer/model/layout.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { type HubRun, type MeasuredOffer, RUN_NAME_CHARS_MAX } from "../../peer/wire/hub.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { measuredOffer } from "./measured.ts";
import { Slot } from "./slot.ts";
import { takeText } from "./texts.ts";
import { type Taken, takeWeights } from "./weights.ts";

/** Runs in the folder, archived ones included: a list that a person still reads. */
export const RUNS_MAX = 200;
/** Open at a time: each has timers, a log and sockets of its own. */
export const OPEN_MAX = 16;
/** What the open runs may need together: their texts, and their models' states while checkpoints are written. */
export const OPEN_BYTES_MAX = 8 * 2 ** 30;
/** A state and the checkpoint that is being made of it. */
const BYTES_PER_PARAM = 2 * 13;

const ID = /^[a-z0-9][a-z0-9-]{0,79}$/;

export interface HubOptions {
  runsDir: string;
  webRoot: string;
  /** Who runs the coordinator; a run may name somebody else. */
  operator: string;
  base(): string;
  port(): number;
  onEvent(id: string, line: CoordinatorEventLine): void;
  onNote(id: string, text: string): void;
}

/** What a new run is made of, checked already. */
export interface NewRun {
  name: string;
  operator: string;
  listed: boolean;
  publicText: boolean;
  config: RunConfig;
  spec: ModelSpec;
  /** Another run of the folder. */
  weightsOf?: string;
}

export class Hub {
  readonly #options: HubOptions;
  readonly #slots = new Map<string, Slot>();
  readonly #lock: Deno.FsFile;
  #closed = false;

  private constructor(options: HubOptions) {
    this.#options = options;
    this.#lock = lockFolder(options.runsDir);
  }

  /**
   * Opens every run of the folder that has neither ended nor been put away; one that cannot be opened is told and passed over.
   * @throws {ShoalError} usage if another coordinator has the folder
   */
  static async open(options: HubOptions): Promise<Hub> {
    const hub = new Hub(options);
    for (const id of folders(options.runsDir)) hub.#take(id);
    for (const slot of hub.#slots.values()) {
      const { archived, interrupted } = slot.card;
      if (archived || slot.failure !== null || (slot.known?.ended === true && !interrupted)) continue;
      await hub.#tryOpen(slot);
    }
    return hub;
  }

  #take(id: string): void {
    const slot = this.#slot(id);
    if (slot.look() !== null || slot.failure !== null) this.#slots.set(id, slot);
  }

  #slot(id: string): Slot {
    const { runsDir, operator, webRoot, base, port, onEvent, onNote } = this.#options;
    const folder = join(runsDir, id);
    const flags = { listed: false, archived: false, publicText: false, interrupted: false };
    const absent = { name: id, operator, ...flags, createdAt: 0 };
    return new Slot({ id, folder, webRoot, base, port, onEvent, onNote }, absent);
  }

  async #tryOpen(slot: Slot): Promise<void> {
    try {
      this.#checkRoom(slot.known?.spec ?? null);
      await slot.resume();
      if (slot.card.interrupted) slot.keep({ interrupted: false });
    } catch (error) {
      slot.failure = messageOf(error);
      this.#options.onNote(slot.id, `it cannot be opened: ${slot.failure}`);
    }
  }

  /** Newest first. */
  rows(admin: boolean): HubRun[] {
    const seen = [...this.#slots.values()].filter((slot) => admin || (slot.card.listed && slot.run !== null));
    return seen.toSorted((a, b) => b.card.createdAt - a.card.createdAt).map((slot) => slot.row(admin));
  }

  /** The open run of that name. */
  run(id: string): OpenRun | null {
    return this.#slots.get(id)?.run ?? null;
  }

  /** The open run, if there is one alone: it answers at the root, too. */
  get only(): OpenRun | null {
    const open = this.#open();
    return open.length === 1 ? open[0]!.run : null;
  }

  /** Names of the runs that learn the prepared text, by its name or as the file that it was made of. */
  usersOf(text: string): string[] {
    const named = CORPUS_PREFIX + text, folder = join(this.#options.runsDir, "corpora", text);
    return [...this.#slots.values()].filter(({ run, known }) => {
      const tokens = run?.shell.options.corpus.tokens;
      const served = tokens instanceof TokenFile && dirname(tokens.path) === folder;
      return served || (run?.shell.core.state.config ?? known?.config)?.dataset === named;
    }).map(({ card }) => card.name);
  }

  /** What the computers in open runs have measured; null: nobody is in one. */
  measured(): MeasuredOffer | null {
    return measuredOffer(this.#open().map(({ run }) => run!.shell.core.state));
  }

  /** Configuration of a run, for another one like it. @throws {ShoalError} usage */
  configOf(id: string): RunConfig {
    const slot = this.#find(id);
    const config = slot.run?.shell.core.state.config ?? slot.known?.config;
    if (config !== undefined) return config;
    throw new ShoalError(
      "usage",
      `the configuration of ${id} cannot be read: ${slot.failure ?? "it has no log"}`,
    );
  }

  /** The name by which another run learns the text of a run. @throws {ShoalError} usage, bad-corpus, storage-full */
  async takeText(id: string): Promise<string> {
    const slot = this.#find(id);
    const known = slot.known ?? slot.look();
    if (known === null) throw new ShoalError("usage", `what ${id} learns cannot be read: ${slot.failure}`);
    const { config, corpusHash, vocabHash } = known;
    const corpus = slot.run?.shell.options.corpus ?? null;
    const folder = join(this.#options.runsDir, "corpora");
    return await takeText({ folder: slot.folder, config, corpusHash, vocabHash, corpus }, folder);
  }

  /** @returns its id @throws {ShoalError} why there can be no such run; nothing of it is left then */
  async create({ config, spec, weightsOf, ...about }: NewRun): Promise<string> {
    if (this.#slots.size >= RUNS_MAX) {
      throw new ShoalError("run-full", `there are ${RUNS_MAX} runs here; delete archived ones first`);
    }
    this.#checkRoom(spec);
    const source = weightsOf === undefined ? null : this.#find(weightsOf);
    const id = this.#freeId(about.name);
    const slot = this.#slot(id);
    Deno.mkdirSync(slot.folder, { recursive: true });
    this.#slots.set(id, slot);
    slot.busy = "being made";
    try {
      slot.keep({ ...about, archived: false, interrupted: false, createdAt: Date.now() });
      const from = source === null ? null : await weightsFrom(source, slot.folder, config);
      await slot.begin(from?.config ?? config, from?.checkpoint);
      slot.look();
      return id;
    } catch (error) {
      this.#slots.delete(id);
      await slot.close("it could not be made").catch(() => {});
      await Deno.remove(slot.folder, { recursive: true }).catch(() => {});
      throw error;
    } finally {
      slot.busy = "";
    }
  }

  /** Ends it with a checkpoint where that is possible; resolves when it is put away. @throws {ShoalError} usage */
  archive(id: string): Promise<void> {
    return this.#alone(id, "archiving", async (slot) => {
      // First of all: a crash meanwhile must not bring it back.
      slot.keep({ archived: true });
      if (await slot.finish() === "late") {
        this.#options.onNote(
          id,
          "its last checkpoint was not complete in time; its log and the one before are kept",
        );
      }
      await slot.close("the run was put away by its organizer");
      slot.failure = null;
    });
  }

  /** Opens a run that is closed, put away or broken. @throws {ShoalError} why it cannot be */
  restore(id: string): Promise<void> {
    return this.#alone(id, "opening", async (slot) => {
      if (slot.run !== null) throw new ShoalError("usage", `${id} is open already`);
      this.#checkRoom((slot.known ?? slot.look())?.spec ?? null);
      try {
        await slot.resume();
        slot.keep({ archived: false, interrupted: false });
      } catch (error) {
        if (!slot.card.archived) slot.failure = messageOf(error);
        throw error;
      }
    });
  }

  /** Deletes everything of an archived run. @param name as a proof that this one is meant @throws {ShoalError} usage */
  remove(id: string, name: unknown): Promise<void> {
    return this.#alone(id, "being deleted", async (slot) => {
      if (!slot.card.archived || slot.run !== null) {
        throw new ShoalError("usage", `${id} is not archived; archive it before it is deleted`);
      }
      if (name !== slot.card.name) {
        throw new ShoalError("usage", `give the run's name, ${JSON.stringify(slot.card.name)}, to delete it`);
      }
      await Deno.remove(slot.folder, { recursive: true });
      this.#slots.delete(id);
    });
  }

  /** Whether anybody who opens the page sees it. @throws {ShoalError} usage */
  list(id: string, listed: boolean): void {
    this.#find(id).keep({ listed });
  }

  /** All runs at once, each with its last checkpoint if `finish`; what fails in one keeps no other from its end. */
  async close(reason: string, { finish = false }: { finish?: boolean } = {}): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await Promise.allSettled(
      this.#open().map(async (slot) => {
        if (finish) await this.#interrupt(slot);
        await slot.close(reason);
      }),
    );
    this.#lock.close();
  }

  /** A run that trains ends with a checkpoint, and goes on from it when the coordinator starts again. */
  async #interrupt(slot: Slot): Promise<void> {
    if (["finished", "failed"].includes(slot.run!.shell.core.state.status)) return;
    slot.keep({ interrupted: true });
    await slot.finish();
  }

  #open(): Slot[] {
    return [...this.#slots.values()].filter((slot) => slot.run !== null);
  }

  #find(id: string): Slot {
    const slot = this.#slots.get(id);
    if (slot !== undefined) return slot;
    throw new ShoalError(
      "usage",
      `there is no run ${JSON.stringify(id.slice(0, 80))} here; the page lists those there are`,
    );
  }

  async #alone(id: string, busy: string, work: (slot: Slot) => Promise<void>): Promise<void> {
    const slot = this.#find(id);
    if (slot.busy !== "") throw new ShoalError("usage", `${id} is ${slot.busy} just now; wait a moment`);
    slot.busy = busy;
    try {
      await work(slot);
    } finally {
      slot.busy = "";
    }
  }

  #checkRoom(spec: ModelSpec | null): void {
    const open = this.#open();
    const others = open.map(({ run }) => {
      const { core, options } = run!.shell;
      return statesOf(core.state.spec) + heldBytes(options.corpus.tokens);
    });
    const bytes = [...others, spec === null ? 0 : statesOf(spec)].reduce((sum, it) => sum + it, 0);
    if (open.length < OPEN_MAX && (bytes <= OPEN_BYTES_MAX || open.length === 0)) return;
    const most = open.length >= OPEN_MAX
      ? `${OPEN_MAX} runs`
      : `texts and states of ${OPEN_BYTES_MAX / 2 ** 30} GiB in all`;
    throw new ShoalError("run-full", `at most ${most} are open at a time; archive another run first`);
  }

  #freeId(name: string): string {
    const base = folderName(name).slice(0, RUN_NAME_CHARS_MAX - 4);
    const taken = new Set([...this.#slots.keys(), ...folders(this.#options.runsDir)]);
    for (let number = 1;; number++) {
      const id = number === 1 ? base : `${base}-${number}`;
      if (!taken.has(id)) return id;
    }
  }
}

function statesOf(spec: ModelSpec): number {
  return BYTES_PER_PARAM * paramCount(spec);
}

/** Names that are runs' ids; anything else in the folder is somebody else's. */
function folders(runsDir: string): string[] {
  return [...Deno.readDirSync(runsDir)].filter((it) => it.isDirectory && ID.test(it.name)).map((it) =>
    it.name
  )
    .sort().slice(0, 2 * RUNS_MAX);
}

async function weightsFrom(source: Slot, runDir: string, config: RunConfig): Promise<Taken> {
  const checkpoint = await newestOf(source.folder);
  if (checkpoint !== null) return await takeWeights(checkpoint, runDir, config);
  throw new ShoalError(
    "bad-checkpoint",
    `${source.card.name} has no checkpoint yet whose weights could be taken`,
  );
}
