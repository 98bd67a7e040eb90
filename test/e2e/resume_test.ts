// A run in real processes, interrupted and resumed: what goes on from a checkpoint ends with the same bits as what was never
// interrupted, and the checkpoint writes text. CPU engine and raw32, so that nothing but the program decides the bits.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readCheckpoint, stageStateOf, weightsOf } from "../../coordinator/store/checkpoints.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { cpuPeer, flagsOf, inFolder, serving, shoal, TINY } from "../support/cli_support.ts";

/** Serves a run, lets two peers train it to its end, and returns the folder of its last checkpoint. */
async function train(verb: "coordinator" | "resume", args: string[]): Promise<string> {
  const { cli, join } = await serving(verb, args);
  await using coordinator = cli;
  await using first = cpuPeer(join);
  await using second = cpuPeer(join);
  const done = await coordinator.line("the end of the run", (line) => line.event === "done");
  assert.equal(await coordinator.ended(), 0);
  for (const peer of [first, second]) {
    assert.equal(await peer.ended(), 0, `a peer failed:\n${peer.err.join("\n")}\n${peer.out.join("\n")}`);
  }
  assert.equal(done.step, 6);
  return String(done.checkpoint);
}

Deno.test("resume: from step 3 to 6 gives the weights of a run that was never interrupted; generate writes text", () =>
  inFolder(async (folder) => {
    const whole = join(folder, "whole");
    const flags = flagsOf({ ...TINY, max_iters: 6, min_peers: 2 });
    const straight = await train("coordinator", [...flags, "--out_dir", whole]);
    const middle = join(whole, "checkpoints", "step-000000003");
    const resumed = await train("resume", [middle, "--out_dir", join(folder, "again")]);
    const [expected, found] = [await readCheckpoint(straight), await readCheckpoint(resumed)];
    const [before] = [await readCheckpoint(middle)];
    assert.deepEqual([before.manifest.step, expected.manifest.step, found.manifest.step], [3, 6, 6]);
    assert.deepEqual(weightsOf(found), weightsOf(expected));
    const model = wholeModel(expected.manifest.spec);
    assert.deepEqual(stageStateOf(found, model), stageStateOf(expected, model));
    assert.notDeepEqual(weightsOf(before), weightsOf(expected), "three steps changed nothing");

    await using writer = shoal("generate", [
      ...[
        "--checkpoint",
        join(folder, "again"),
        "--prompt",
        "Call me",
        "--count",
        "12",
        "--seed",
        "1",
        "--json",
      ],
    ]);
    assert.equal(await writer.ended(), 0, writer.err.join("\n"));
    const [text] = writer.json();
    assert.deepEqual([text!.step, text!.prompt, [...String(text!.text)].length], [6, "Call me", 12]);
  }));

Deno.test("resume: a run whose last checkpoint cannot be written says why and ends with 1", () =>
  inFolder(async (folder) => {
    const flags = flagsOf({ ...TINY, max_iters: 1, min_peers: 1 });
    const { cli, join: link } = await serving("coordinator", [...flags, "--out_dir", folder]);
    await using coordinator = cli;
    await Deno.writeTextFile(join(folder, "checkpoints"), "a file where a folder belongs");
    await using peer = cpuPeer(link);
    const failed = await coordinator.line("the failure", (line) => line.state === "failed");
    assert.match(String(failed.reason), /last checkpoint could not be written/);
    assert.equal(await coordinator.ended(), 1);
    assert.equal(await peer.ended(), 0, peer.out.join("\n"));
  }));
