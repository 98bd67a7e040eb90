// The coordinator's disk in a simulation: the run's log in its real format, of which a crash leaves what was synced and a piece
// of the rest, and the newest saved snapshot, which a rename makes whole or not at all. It shows what the log must survive: a
// torn tail, and no space left.
import type { RunRecord } from "../../coordinator/core/run_record.ts";
import { decodeLog, encodeRecord, fold, type LogRecord } from "../../coordinator/store/run_log_format.ts";
import type { StateSource } from "../../peer/wire/control.ts";
import type { Random } from "../support/random.ts";

export class Disk {
  /** No space: whatever is written is refused and leaves nothing. */
  full = false;
  /** Torn tails that were found and cut. */
  torn = 0;
  saved: StateSource | null = null;
  #bytes = new Uint8Array(0);
  #synced = 0;
  #records = 0;

  /** Writes a record behind the others; false if there is no space. It is durable only after `sync`. */
  append(record: LogRecord): boolean {
    if (this.full) return false;
    const more = encodeRecord(record, this.#records++);
    const grown = new Uint8Array(this.#bytes.length + more.length);
    grown.set(this.#bytes);
    grown.set(more, this.#bytes.length);
    this.#bytes = grown;
    return true;
  }

  sync(): void {
    this.#synced = this.#bytes.length;
  }

  /** A whole snapshot, or none; false if there is no space. */
  save(source: StateSource): boolean {
    if (!this.full) this.saved = source;
    return !this.full;
  }

  /** Power is gone: of what was not synced any prefix may be there. With `tear` an append was just under way. */
  crash(random: Random, tear: boolean): void {
    if (tear) {
      this.full = false;
      this.append({ kind: "ids", upTo: 1 });
    }
    const loose = this.#bytes.length - this.#synced;
    // A whole record that was never synced would be as good as a synced one: a tear cuts into it.
    const kept = this.#synced + Math.floor(random() * (tear ? loose : loose + 1));
    this.#bytes = this.#bytes.slice(0, kept);
  }

  /** The run as the log tells it; a torn tail is cut. Throws if the log is damaged otherwise, which no crash may do. */
  load(): RunRecord {
    const decoded = decodeLog(this.#bytes);
    if (!decoded.ok) throw new Error(`I1 the log cannot be read: ${decoded.reason}`);
    const { records, goodBytes } = decoded.value;
    if (goodBytes < this.#bytes.length) this.torn++;
    this.#bytes = this.#bytes.slice(0, goodBytes);
    this.#synced = goodBytes;
    this.#records = records.length;
    const [first, ...rest] = records;
    if (first?.kind !== "run") throw new Error("I1 the log is empty");
    return rest.reduce(fold, first.run);
  }
}
