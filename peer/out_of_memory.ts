// What counts as a lack of memory, on the device or beside it, and how much a peer offers after one. No allocation here.
import type { StageBuild } from "./engine/engine.ts";
import { engineBytes, engineKind, stateBytes } from "./model/stage_memory.ts";
import { ShoalError } from "./wire/errors.ts";
import type { RunConfig } from "./wire/run.ts";
import { SNAPSHOT_MEMORY_SHARE } from "./wire/snapshots.ts";

/** Share of what could not be had that is offered next: enough for another plan to be found, and it comes down quickly. */
const OFFER_SHARE = 4 / 5;

/** Errors of our own with that code, and those of typed arrays that the runtime cannot allocate. */
export function isOutOfMemory(error: unknown): boolean {
  if (error instanceof ShoalError) return error.code === "out-of-memory";
  return error instanceof RangeError && /allocation|array length/i.test(error.message);
}

/** What a peer lends. It begins with what its owner or runtime allows and only ever goes down. */
export class MemoryOffer {
  #bytes: number;
  #refused = Infinity;

  constructor(bytes: number) {
    this.#bytes = bytes;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** An engine could not be built: the next plan must ask for less than this one did. */
  note(engine: string, build: StageBuild, config: RunConfig): void {
    const needed = engineBytes(engineKind(engine), build) + stateBytes(build, config);
    this.#refused = Math.min(this.#refused, needed / (1 - SNAPSHOT_MEMORY_SHARE));
  }

  lower(): void {
    this.#bytes = Math.floor(Math.min(this.#bytes, this.#refused) * OFFER_SHARE);
    this.#refused = Infinity;
  }
}
