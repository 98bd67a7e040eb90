// What it costs to make a commit durable: the run's log as it is, beside a bare synced append and SQLite with synchronous = FULL,
// in a folder of your choice. Not a test: disks differ. Usage: deno run -A bench/run_log.ts [--dir=FOLDER] [--count=N] [--json]
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { parseArgs } from "node:util";
import { RunLog } from "../coordinator/store/run_log.ts";
import { readConfig } from "../peer/model/config.ts";
import { specOf } from "../peer/model/layout.ts";

const { values } = parseArgs({
  args: Deno.args,
  options: {
    dir: { type: "string", default: "." },
    count: { type: "string", default: "500" },
    json: { type: "boolean", default: false },
  },
});

/** Bytes of a bare record, about those of a commit of two stages. */
const RECORD_BYTES = 200;
/** Appends before the first that is counted: files grow, caches fill. */
const WARM_UP = 20;

interface Row {
  what: string;
  p50Ms: number;
  p95Ms: number;
  maxMs: number;
}

function measure(what: string, count: number, once: (i: number) => void): Row {
  const times: number[] = [];
  for (let i = 0; i < count + WARM_UP; i++) {
    const begun = performance.now();
    once(i);
    if (i >= WARM_UP) times.push(performance.now() - begun);
  }
  times.sort((a, b) => a - b);
  const at = (share: number) => times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? NaN;
  return { what, p50Ms: at(0.5), p95Ms: at(0.95), maxMs: at(1) };
}

function runLog(folder: string, count: number): Row {
  const config = readConfig({});
  const log = RunLog.create(folder, {
    config,
    spec: specOf(config, 80),
    corpusHash: "0".repeat(64),
    committed: 0,
  });
  const hashes = ["0".repeat(32), "1".repeat(32)];
  const row = measure(
    "run log, commit of two stages",
    count,
    (step) => log.appendCommit({ step, gen: 1, cut: 1, hashes, gradNormSq: 1 / (step + 3) }),
  );
  log.close();
  return row;
}

function bare(folder: string, count: number, sync: boolean): Row {
  using file = Deno.openSync(join(folder, `bare-${sync}`), { write: true, create: true, append: true });
  const record = new Uint8Array(RECORD_BYTES);
  return measure(sync ? "append and fdatasync" : "append, not synced", count, () => {
    file.writeSync(record);
    if (sync) file.syncDataSync();
  });
}

function sqlite(folder: string, count: number, mode: "WAL" | "DELETE"): Row {
  const db = new DatabaseSync(join(folder, `${mode}.sqlite`));
  db.exec(`PRAGMA journal_mode = ${mode}; PRAGMA synchronous = FULL; CREATE TABLE record (bytes BLOB)`);
  const insert = db.prepare("INSERT INTO record VALUES (?)");
  const row = measure(`SQLite, ${mode}, synchronous = FULL`, count, () => {
    insert.run(new Uint8Array(RECORD_BYTES));
  });
  db.close();
  return row;
}

const folder = Deno.makeTempDirSync({ dir: values.dir, prefix: ".shoal-bench-" });
try {
  const count = Math.max(1, Number(values.count) || 500);
  const rows = [
    runLog(folder, count),
    bare(folder, count, true),
    bare(folder, count, false),
    sqlite(folder, count, "WAL"),
    sqlite(folder, count, "DELETE"),
  ];
  if (values.json) console.log(JSON.stringify({ rows }));
  else {
    const shown = rows.map(({ what, p50Ms, p95Ms, maxMs }) => ({
      ...{ what, "p50 ms": p50Ms.toFixed(3), "p95 ms": p95Ms.toFixed(3), "max ms": maxMs.toFixed(3) },
    }));
    console.table(shown);
  }
} finally {
  Deno.removeSync(folder, { recursive: true });
}
