// The run's log: what was appended comes back, whatever a crash, a bad disk or a full one does to the file. Every byte of the
// last records is a place where a crash may cut; every bit of the others is one that may flip.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import type { View } from "../../peer/wire/run.ts";
import type { CommitRecord, RestoredPeer } from "../core/run_record.ts";
import { lookAtRunLog, type NewRun, RUN_LOG_NAME, RunLog, type RunLogOptions } from "./run_log.ts";
import { decodeLog, encodeRecord } from "./run_log_format.ts";

const CONFIG = readConfig({ n_layer: 2, max_iters: 9 });
const BEGIN: NewRun = { config: CONFIG, spec: specOf(CONFIG, 7), corpusHash: "ab", committed: 0 };

function commit(step: number): CommitRecord {
  return { step, gen: 1, cut: 1, hashes: [`a${step}`, `b${step}`], gradNormSq: step + 1 / 3 };
}

function view(gen: number): View {
  return {
    ...{ gen, cut: gen - 1, baseStep: 0, stages: [], schedule: "dynamic" as const },
    ...{ codecForward: "raw32" as const, codecBackward: "f16s" as const },
  };
}

const PEER: RestoredPeer = {
  ...{ id: "tab-1", ticket: "secret", incarnation: 1, runtime: "tab", adapter: "Ünïcode ÿ", engine: "e" },
  ...{ name: "n", blockMs: 1.25, memoryBytes: 4e9 },
};

async function inFolder(body: (folder: string) => void | Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-log-" });
  try {
    await body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

function hasCode(code: ErrorCode, says: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ShoalError, String(error));
    assert.equal(error.code, code);
    assert.match(error.message, says);
    return true;
  };
}

function read(folder: string) {
  return lookAtRunLog(folder)!.run;
}

Deno.test("run log: what was appended comes back, and a new life goes on with it", () =>
  inFolder((folder) => {
    assert.equal(lookAtRunLog(folder), null);
    const log = RunLog.create(folder, BEGIN);
    assert.deepEqual([log.takeId(), log.takeId()], [1, 2]);
    log.appendView(view(3), [PEER]);
    for (let step = 0; step < 4; step++) log.appendCommit(commit(step));
    log.close();
    const { run } = lookAtRunLog(folder)!;
    assert.deepEqual(run, log.run);
    assert.deepEqual([run.gen, run.committed, run.commit, run.peers], [3, 4, commit(3), [PEER]]);
    assert.deepEqual([run.view, run.config, run.spec, run.ended], [view(3), CONFIG, BEGIN.spec, null]);
    const again = RunLog.reopen(folder);
    assert.deepEqual([again.run, again.tornBytes], [run, 0]);
    assert.ok(again.takeId() > 2, "a number was given twice");
    again.appendEnd({ step: 9, checkpoint: "c" });
    again.close();
    assert.deepEqual(read(folder).ended, { step: 9, checkpoint: "c" });
  }));

Deno.test("run log: only its owner reads it, and one coordinator at a time writes it", () =>
  inFolder((folder) => {
    const log = RunLog.create(folder, BEGIN);
    assert.equal(Deno.statSync(join(folder, RUN_LOG_NAME)).mode! & 0o077, 0);
    for (const open of [() => RunLog.reopen(folder), () => RunLog.create(folder, BEGIN)]) {
      assert.throws(open, hasCode("usage", /another coordinator is running/));
    }
    log.close();
    RunLog.reopen(folder).close();
  }));

Deno.test("run log: a new run and a rewind are new epochs, a new life is not", () =>
  inFolder((folder) => {
    const log = RunLog.create(folder, BEGIN);
    const { epoch } = log.run;
    log.appendView(view(1), [PEER]);
    for (let step = 0; step < 6; step++) log.appendCommit(commit(step));
    log.close();
    const again = RunLog.reopen(folder);
    assert.equal(again.run.epoch, epoch);
    again.appendRewind(4);
    const { epoch: rewound, committed, commit: newest, view: gone, peers } = again.run;
    assert.notEqual(rewound, epoch);
    assert.deepEqual([committed, newest, gone, peers], [4, null, null, []]);
    again.close();
    assert.deepEqual(read(folder), again.run);
    const anew = RunLog.create(folder, { ...BEGIN, committed: 2 });
    assert.ok(![epoch, rewound].includes(anew.run.epoch));
    assert.equal(anew.run.committed, 2);
    anew.close();
    assert.ok(Deno.statSync(join(folder, `${RUN_LOG_NAME}.old`)).isFile, "the earlier log was thrown away");
  }));

/** A log with a view and three commits, and where each of its records begins. */
function written(folder: string): { bytes: Uint8Array; starts: number[] } {
  const log = RunLog.create(folder, BEGIN);
  const starts = [0, log.bytes];
  log.appendView(view(1), [PEER]);
  for (let step = 0; step < 3; step++) {
    starts.push(log.bytes);
    log.appendCommit(commit(step));
  }
  log.close();
  return { bytes: Deno.readFileSync(join(folder, RUN_LOG_NAME)), starts };
}

Deno.test("run log: cut at every byte after its first record it keeps every whole record, and goes on", () =>
  inFolder((folder) => {
    const { bytes, starts } = written(folder);
    const path = join(folder, RUN_LOG_NAME);
    for (let length = starts[1]!; length <= bytes.length; length++) {
      Deno.writeFileSync(path, bytes.subarray(0, length));
      const whole = starts.slice(1).filter((start) => start <= length);
      const commits = Math.max(0, (length === bytes.length ? whole.length : whole.length - 1) - 1);
      const look = lookAtRunLog(folder)!;
      assert.equal(look.run.committed, commits, `cut at ${length}`);
      const good = length === bytes.length ? length : whole.at(-1)!;
      assert.equal(look.tornBytes, length - good, `cut at ${length}`);
    }
    Deno.writeFileSync(path, bytes.subarray(0, bytes.length - 1));
    const log = RunLog.reopen(folder);
    assert.ok(log.tornBytes > 0);
    assert.equal(log.run.committed, 2);
    log.appendCommit({ ...commit(2), hashes: ["other"] });
    log.close();
    const { run, tornBytes } = lookAtRunLog(folder)!;
    assert.deepEqual([run.committed, run.commit?.hashes, tornBytes], [3, ["other"], 0]);
  }));

Deno.test("run log: a log whose first record is cut was never there under its name, so it is damage", () =>
  inFolder((folder) => {
    const { bytes, starts } = written(folder);
    for (let length = 0; length < starts[1]!; length++) {
      const cut = decodeLog(bytes.subarray(0, length));
      assert.ok(!cut.ok && cut.code === "bad-log", `cut at ${length}`);
    }
  }));

Deno.test("run log: zeros after the last record, as a crash of the machine may leave them, are a torn tail", () =>
  inFolder((folder) => {
    const { bytes } = written(folder);
    const padded = new Uint8Array(bytes.length + 4096);
    padded.set(bytes);
    Deno.writeFileSync(join(folder, RUN_LOG_NAME), padded);
    const { run, tornBytes } = lookAtRunLog(folder)!;
    assert.deepEqual([run.committed, tornBytes], [3, 4096]);
  }));

Deno.test("run log: any bit that flips before the last record is found, and nothing is skipped", () =>
  inFolder((folder) => {
    const { bytes, starts } = written(folder);
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      const flipped = bytes.slice();
      flipped[bit >> 3]! ^= 1 << (bit & 7);
      const decoded = decodeLog(flipped);
      if ((bit >> 3) < starts.at(-1)!) {
        assert.ok(!decoded.ok && decoded.code === "bad-log", `bit ${bit} went unnoticed`);
      } else {
        // The last record cannot be told from one that was being written; it is left out, never believed.
        assert.ok(decoded.ok && decoded.value.records.length === starts.length - 1, `bit ${bit}`);
        assert.equal(decoded.value.goodBytes, starts.at(-1));
      }
    }
  }));

Deno.test("run log: a record that is missing, doubled, out of order or of a newer version is named", () =>
  inFolder((folder) => {
    const { bytes, starts } = written(folder);
    const records = starts.map((start, i) => bytes.slice(start, starts[i + 1] ?? bytes.length));
    const [run, viewed, one, two, three] = records as [
      Uint8Array,
      Uint8Array,
      Uint8Array,
      Uint8Array,
      Uint8Array,
    ];
    const path = join(folder, RUN_LOG_NAME);
    const newer = JSON.parse(new TextDecoder().decode(run.subarray(16)));
    const foreign = (value: unknown, at: number) =>
      encodeRecord(value as Parameters<typeof encodeRecord>[0], at);
    const cases: [Uint8Array[], RegExp][] = [
      [[run, viewed, two, three], /record 2 is not whole at byte/],
      [[run, viewed, one, one, two, three], /record 3 is not whole/],
      [[run, viewed, two, one, three], /record 2 is not whole/],
      [[viewed, one], /first record/],
      [[run, run], /record 1 is not whole/],
      [[run, foreign(newer, 1)], /begins twice/],
      [[foreign({ ...newer, format: 2 }, 0)], /format 2, this version reads 1/],
      [[run, foreign({ kind: "constructor" }, 1)], /unknown kind/],
      [[run, new Uint8Array(5 << 20)], /are no record/],
    ];
    for (const [parts, says] of cases) {
      Deno.writeFileSync(path, Uint8Array.from(parts.flatMap((part) => [...part])));
      assert.throws(() => lookAtRunLog(folder), hasCode("bad-log", says));
      assert.throws(() => RunLog.reopen(folder), hasCode("bad-log", /shoal resume/));
    }
    assert.ok(Deno.statSync(path).isFile, "a damaged log was moved without being asked");
    RunLog.create(folder, BEGIN).close();
    assert.equal(read(folder).committed, 0);
  }));

Deno.test("run log: it stays short, whatever the number of commits", () =>
  inFolder((folder) => {
    const compactBytes = 4_000;
    const log = RunLog.create(folder, BEGIN, { compactBytes });
    log.appendView(view(1), [PEER]);
    let most = 0;
    for (let step = 0; step < 300; step++) {
      log.appendCommit(commit(step));
      most = Math.max(most, Deno.statSync(join(folder, RUN_LOG_NAME)).size);
    }
    assert.ok(most < compactBytes + 500, `${most} bytes`);
    log.close();
    assert.deepEqual([read(folder).committed, read(folder).commit], [300, commit(299)]);
    assert.deepEqual(read(folder).peers, [PEER]);
    const names = [...Deno.readDirSync(folder)].map((entry) => entry.name).sort();
    assert.deepEqual(names, ["run.lock", RUN_LOG_NAME]);
  }));

/** A disk on which only so many more bytes fit, and whose syncs fail while it is said so. */
class SmallDisk {
  left = Infinity;
  syncs = true;
  readonly options: RunLogOptions = {
    openFile: (path, how) => {
      const file = Deno.openSync(path, how);
      return {
        writeSync: (bytes) => {
          if (this.left <= 0) throw Object.assign(new Error("No space left on device"), { code: "ENOSPC" });
          const taken = file.writeSync(bytes.subarray(0, Math.min(bytes.length, this.left)));
          this.left -= taken;
          return taken;
        },
        syncDataSync: () => {
          if (!this.syncs) throw Object.assign(new Error("Input/output error"), { code: "EIO" });
          file.syncDataSync();
        },
        truncateSync: (length) => file.truncateSync(length),
        utimeSync: (atime, mtime) => file.utimeSync(atime, mtime),
        close: () => file.close(),
      };
    },
  };
}

Deno.test("run log: on a full disk the append fails at whatever byte, keeps the log, and succeeds once there is space", () =>
  inFolder((folder) => {
    const length = encodeRecord({ kind: "commit", ...commit(1) }, 2).length;
    for (let left = 0; left < length; left++) {
      const disk = new SmallDisk();
      const log = RunLog.create(folder, BEGIN, disk.options);
      log.appendCommit(commit(0));
      disk.left = left;
      for (let attempt = 0; attempt < 3; attempt++) {
        assert.throws(
          () => log.appendCommit(commit(1)),
          hasCode("storage-full", /No space left.*free some space/),
        );
        assert.deepEqual([log.run.committed, lookAtRunLog(folder)!.run.committed], [1, 1]);
        assert.equal(lookAtRunLog(folder)!.tornBytes, 0);
        disk.left = 10;
      }
      disk.left = Infinity;
      log.appendCommit(commit(1));
      log.appendCommit(commit(2));
      log.close();
      assert.deepEqual([read(folder).committed, read(folder).commit], [3, commit(2)]);
    }
  }));

Deno.test("run log: after a failed sync the file is not trusted any more but written anew", () =>
  inFolder((folder) => {
    const disk = new SmallDisk();
    const log = RunLog.create(folder, BEGIN, disk.options);
    const inode = () => Deno.statSync(join(folder, RUN_LOG_NAME)).ino;
    log.appendCommit(commit(0));
    const before = inode();
    disk.syncs = false;
    assert.throws(
      () => log.appendCommit(commit(1)),
      hasCode("storage-full", /Input\/output error.*check the folder/),
    );
    assert.throws(() => log.appendCommit(commit(1)), hasCode("storage-full", /Input\/output error/));
    disk.syncs = true;
    log.appendCommit(commit(1));
    assert.notEqual(inode(), before);
    log.close();
    assert.equal(read(folder).committed, 2);
  }));

Deno.test("run log: a mark of life is the file's time and nothing else", () =>
  inFolder((folder) => {
    const log = RunLog.create(folder, BEGIN);
    const bytes = Deno.readFileSync(join(folder, RUN_LOG_NAME));
    log.markAlive(new Date(1_700_000_000_000));
    assert.equal(lookAtRunLog(folder)!.aliveMs, 1_700_000_000_000);
    assert.deepEqual(Deno.readFileSync(join(folder, RUN_LOG_NAME)), bytes);
    log.close();
  }));
