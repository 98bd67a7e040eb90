// The event log: what is appended is there, in order, also for whoever opens it later; nothing is rewritten.
import assert from "node:assert/strict";
import { join } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { EventLog } from "./event_log.ts";

async function inFolder(body: (folder: string) => void): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-log-" });
  try {
    body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

Deno.test("event log: events come back in order, with their data, newest last", () =>
  inFolder((folder) => {
    const log = new EventLog(folder);
    log.append(1000.6, { kind: "join", text: "a joined" });
    log.append(999, { kind: "commit", text: 'step "0"; DROP TABLE event', data: { step: 0, hashes: ["x"] } });
    assert.deepEqual(
      log.newest(10),
      [
        { seq: 1, atMs: 1001, kind: "join", text: "a joined", data: null },
        {
          seq: 2,
          atMs: 999,
          kind: "commit",
          text: 'step "0"; DROP TABLE event',
          data: '{"step":0,"hashes":["x"]}',
        },
      ].map((row) => Object.assign(Object.create(null), row)),
    );
    assert.deepEqual(log.newest(1).map((event) => event.seq), [2]);
    log.close();
  }));

Deno.test("event log: reopened, it goes on where it was", () =>
  inFolder((folder) => {
    const run = join(folder, "deep", "run");
    for (const text of ["first", "second", "third"]) {
      const log = new EventLog(run);
      log.append(1, { kind: "k", text });
      log.metric({ event: text });
      log.close();
    }
    const log = new EventLog(run);
    assert.deepEqual(log.newest(10).map(({ seq, text }) => [seq, text]), [
      [1, "first"],
      [2, "second"],
      [3, "third"],
    ]);
    log.close();
    const lines = Deno.readTextFileSync(join(run, "metrics.jsonl")).trimEnd().split("\n");
    assert.deepEqual(lines.map((line) => JSON.parse(line)), [
      { event: "first" },
      { event: "second" },
      { event: "third" },
    ]);
  }));

Deno.test("event log: a reader beside the writer sees what is written", () =>
  inFolder((folder) => {
    const writer = new EventLog(folder);
    writer.append(1, { kind: "k", text: "seen" });
    const reader = new EventLog(folder);
    assert.deepEqual(reader.newest(5).map((event) => event.text), ["seen"]);
    reader.close();
    writer.close();
  }));

Deno.test("event log: a folder that cannot be one is refused with the remedy", () =>
  inFolder((folder) => {
    const file = join(folder, "file");
    Deno.writeTextFileSync(file, "");
    assert.throws(() => new EventLog(join(file, "run")), (error) => {
      return error instanceof ShoalError && error.code === "storage-full" && /--out_dir/.test(error.message);
    });
  }));
