// The run's event log in SQLite (write-ahead mode): what happened, in order, durable across a crash of the coordinator.
// Beside it metrics.jsonl, the source of truth for curves, and the same for TensorBoard. Append only; nothing is ever rewritten.
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { Board } from "./tensorboard.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";

export interface StoredEvent {
  seq: number;
  atMs: number;
  kind: string;
  text: string;
  data: string | null;
}

export class EventLog {
  readonly #db: DatabaseSync;
  readonly #insert;
  readonly #metrics: Deno.FsFile;
  readonly #board: Board;

  /** @throws {ShoalError} storage-full or internal if the folder cannot be written. */
  constructor(runDir: string) {
    try {
      Deno.mkdirSync(runDir, { recursive: true });
      this.#db = new DatabaseSync(join(runDir, "events.sqlite"));
      this.#db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
      this.#db.exec(
        "CREATE TABLE IF NOT EXISTS event (seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, " +
          "kind TEXT NOT NULL, text TEXT NOT NULL, data TEXT)",
      );
      this.#insert = this.#db.prepare("INSERT INTO event (at_ms, kind, text, data) VALUES (?, ?, ?, ?)");
      this.#metrics = Deno.openSync(join(runDir, "metrics.jsonl"), { create: true, append: true });
      this.#board = new Board(runDir, Date.now());
    } catch (error) {
      const advice = "choose a writable --out_dir with free space";
      throw new ShoalError(
        "storage-full",
        `cannot open the run's folder ${runDir}: ${messageOf(error)}; ${advice}`,
      );
    }
  }

  append(atMs: number, event: { kind: string; text: string; data?: Record<string, unknown> }): void {
    const data = event.data === undefined ? null : JSON.stringify(event.data);
    this.#insert.run(Math.round(atMs), event.kind, event.text, data);
  }

  metric(line: Record<string, unknown>): void {
    this.#metrics.writeSync(new TextEncoder().encode(JSON.stringify(line) + "\n"));
    const { at_ms } = line;
    this.#board.line(typeof at_ms === "number" ? at_ms : Date.now(), line);
  }

  newest(limit: number): StoredEvent[] {
    const rows = this.#db.prepare(
      "SELECT seq, at_ms AS atMs, kind, text, data FROM event ORDER BY seq DESC LIMIT ?",
    ).all(limit);
    return rows.reverse() as unknown as StoredEvent[];
  }

  close(): void {
    this.#db.close();
    this.#metrics.close();
    this.#board.close();
  }
}
