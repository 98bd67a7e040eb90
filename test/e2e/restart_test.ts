// The coordinator is killed in the middle of a run and resumed in the same folder: the links stay, the peers come back by
// themselves, no step is done again, and the end has the bits of a run that was never interrupted.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readCheckpoint, weightsOf } from "../../coordinator/store/checkpoints.ts";
import { RUN_LOG_NAME } from "../../coordinator/store/run_log.ts";
import { cpuPeer, flagsOf, inFolder, serving, shoal, TINY } from "../support/cli_support.ts";

const STEPS = 40;
/** More often than checkpoints, so that the resumed run starts from a saved snapshot. */
const SETTINGS = { ...TINY, max_iters: STEPS, min_peers: 2, snapshot_interval: 4, checkpoint_interval: 1000 };

Deno.test("a coordinator killed again and again is resumed; its peers come back as who they were, and no step is done twice", () =>
  inFolder(async (folder) => {
    const flags = flagsOf(SETTINGS);
    const straight = await uninterrupted([...flags, "--out_dir", join(folder, "whole")]);

    const broken = join(folder, "broken");
    let { cli, join: link } = await serving("coordinator", [...flags, "--out_dir", broken]);
    await using first = cpuPeer(link);
    await using second = cpuPeer(link);
    let committed = 0;
    for (const target of [10, 18, 26]) {
      await cli.line(`step ${target}`, (line) => line.event === "step" && Number(line.step) >= target);
      // At once, wherever the next step happens to be, and without a word to anybody.
      await cli[Symbol.asyncDispose]();
      committed = stepsOf(cli).at(-1)!;
      // A crash in the middle of a write leaves half a record behind.
      await Deno.writeFile(join(broken, RUN_LOG_NAME), TORN, { append: true });
      const again = await serving("resume", [broken]);
      cli = again.cli;
      assert.equal(again.join, link, "the join link changed");
      const next = await cli.line("the next step", (line) => line.event === "step");
      assert.ok(Number(next.step) > committed, `step ${next.step} was done twice`);
    }
    await using resumed = cli;
    const done = await resumed.line("the end of the run", (line) => line.event === "done");
    assert.equal(await resumed.ended(), 0);
    const joined = resumed.json().filter((line) => isPeerLine(line, /joined/));
    assert.deepEqual(joined, [], "a peer came back as somebody else");
    assert.match(resumed.err.join("\n"), /going on at step \d+ from the run's log/);
    for (const peer of [first, second]) assert.equal(await peer.ended(), 0, peer.err.join("\n"));
    const [expected, found] = [await readCheckpoint(straight), await readCheckpoint(String(done.checkpoint))];
    assert.deepEqual(weightsOf(found), weightsOf(expected));
  }));

/** The first bytes of a record. */
const TORN = Uint8Array.of(0x53, 0x4c, 0x4f, 0xff, 3, 0, 0, 0, 200, 0, 0, 0, 1, 2, 3, 4, 5, 6);

function stepsOf(cli: { json(): Record<string, unknown>[] }): number[] {
  return cli.json().filter((line) => line.event === "step").map((line) => Number(line.step));
}

Deno.test("an unfinished run's folder is not begun anew; without its peers it goes on from what was saved", () =>
  inFolder(async (folder) => {
    const flags = [...flagsOf(SETTINGS), "--out_dir", join(folder, "run")];
    const { cli, join: link } = await serving("coordinator", flags);
    await using first = cpuPeer(link);
    await using second = cpuPeer(link);
    await cli.line("step 10", (line) => line.event === "step" && Number(line.step) >= 10);
    for (const process of [cli, first, second]) await process[Symbol.asyncDispose]();

    await using refused = shoal("coordinator", flags);
    assert.equal(await refused.ended(), 2);
    assert.match(refused.err.join("\n"), /holds an unfinished run at step \d+; "shoal resume .*run" goes on/);

    // Another configuration is no business of the log's; the same one would wait a minute for the former peers.
    const again = await serving("resume", [join(folder, "run"), `--max_iters=${STEPS + 1}`]);
    await using resumed = again.cli;
    assert.equal(again.join, link, "the join link changed");
    await using _third = cpuPeer(link);
    await using _fourth = cpuPeer(link);
    const step = await resumed.line("a step", (line) => line.event === "step");
    assert.ok(Number(step.step) > 4 && Number(step.step) <= STEPS + 1, `went on at step ${step.step}`);
    assert.match(resumed.err.join("\n"), /going on from the checkpoint of step \d+/);
  }));

async function uninterrupted(args: string[]): Promise<string> {
  const { cli, join: link } = await serving("coordinator", args);
  await using coordinator = cli;
  await using _first = cpuPeer(link);
  await using _second = cpuPeer(link);
  const done = await coordinator.line("the end of the run", (line) => line.event === "done");
  assert.equal(await coordinator.ended(), 0);
  return String(done.checkpoint);
}

Deno.test("a peer that freezes is missed, the others go on, and thawed it comes back as a new peer", () =>
  inFolder(async (folder) => {
    const flags = flagsOf({ ...SETTINGS, max_iters: 100_000, snapshot_interval: 50 });
    const { cli, join: link } = await serving("coordinator", [...flags, "--out_dir", join(folder, "run")]);
    await using coordinator = cli;
    await using _steady = cpuPeer(link);
    await using sleeper = cpuPeer(link);
    await coordinator.line("step 30", (line) => line.event === "step" && Number(line.step) >= 30);
    sleeper.signal("SIGSTOP");
    const put = await coordinator.line("the eviction", (line) => isPeerLine(line, /put out: silent/));
    await coordinator.line("steps of one peer", (line) => line.event === "step" && line.peers === 1);
    sleeper.signal("SIGCONT");
    const joined = coordinator.json().filter((line) => isPeerLine(line, /joined/)).length;
    await coordinator.line("steps of two peers again", (line) => {
      const back = coordinator.json().filter((it) => isPeerLine(it, /joined/)).length > joined;
      return back && line.event === "step" && line.peers === 2 && Number(line.step) > 30;
    });
    assert.equal(
      coordinator.json().some((line) => line.event === "rollback"),
      false,
      `${put.id}: a step was lost`,
    );
  }));

function isPeerLine(line: Record<string, unknown>, what: RegExp): boolean {
  return line.event === "peer" && what.test(String(line.what));
}

Deno.test("Ctrl-C on the coordinator finishes the step and leaves a checkpoint that resumes", () =>
  inFolder(async (folder) => {
    const flags = flagsOf({ ...SETTINGS, max_iters: 100_000, snapshot_interval: 1000 });
    const run = join(folder, "run");
    const { cli, join: link } = await serving("coordinator", [...flags, "--out_dir", run]);
    await using coordinator = cli;
    await using peer = cpuPeer(link);
    await using _other = cpuPeer(link);
    await coordinator.line("step 5", (line) => line.event === "step" && Number(line.step) >= 5);
    coordinator.interrupt();
    const done = await coordinator.line("the last checkpoint", (line) => line.event === "done");
    assert.equal(await coordinator.ended(), 0, coordinator.err.join("\n"));
    const { manifest } = await readCheckpoint(String(done.checkpoint));
    assert.ok(manifest.step >= 5 && manifest.step === done.step);
    assert.equal(await peer.ended(), 0, peer.err.join("\n"));
  }));
