// A live run whose stages write a text together, in real processes: three peers with a stage each. What they write is what the
// checkpoint of the same step writes, several texts at a time; and a peer that is killed in mid-text costs no text.
import assert from "node:assert/strict";
import { join } from "node:path";
import { cpuPeer, flagsOf, inFolder, serving, shoal, TINY } from "../support/cli_support.ts";

/** Three layers on three peers; every step is a checkpoint, so that there is one of whatever step a text is of. */
const RUN = {
  ...{ ...TINY, n_layer: 3, n_stage: 3, min_peers: 3, max_iters: 100_000, eval_interval: 1_000_000 },
  ...{ checkpoint_interval: 1, snapshot_interval: 0 },
};

interface Answer {
  choices: { text: string; index: number; finish_reason: string }[];
  system_fingerprint: string;
  shoal: { live: boolean; steps: number[]; restarts: number };
  usage: { prompt_tokens: number; completion_tokens: number };
}

function post(admin: string, path: string, body: Record<string, unknown>): Promise<Response> {
  const { origin, hash } = new URL(admin);
  const headers = { authorization: `Bearer ${hash.slice(1)}`, "content-type": "application/json" };
  return fetch(`${origin}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
}

async function write(admin: string, body: Record<string, unknown>): Promise<Answer> {
  const response = await post(admin, "/v1/completions", { live: true, ...body });
  assert.equal(response.status, 200, await response.clone().text());
  return await response.json();
}

/** With a checkpoint, or with the peers behind a link. */
async function written(by: { checkpoint: string } | { url: string }, prompt: string, seed: number) {
  const flags = flagsOf({ ...by, prompt, count: 24, seed, temperature: 1 });
  await using cli = shoal("generate", [...flags, "--json"]);
  assert.equal(await cli.ended(), 0, cli.err.join("\n"));
  return String(cli.json()[0]!.text);
}

Deno.test("live text: three stages write what a checkpoint writes, and go on when one of them is killed", () =>
  inFolder(async (folder) => {
    const out = join(folder, "run");
    const args = [...flagsOf(RUN), "--out_dir", out, "--name", "live"];
    const { cli, join: link, admin } = await serving("coordinator", args);
    await using coordinator = cli;
    await using first = cpuPeer(link);
    await using second = cpuPeer(link);
    await using third = cpuPeer(link);
    await coordinator.line("a checkpoint", (line) => line.event === "checkpoint");
    assert.equal((await post(admin, "/api/control", { action: "pause" })).status, 200);
    await coordinator.line("the pause", (line) => line.event === "state" && line.state === "paused");

    const prompt = "Call me Ishmael";
    const asked = { prompt: [prompt, "Some"], n: 2, max_tokens: 24, seed: 7 };
    const answer = await write(admin, asked);
    const [step] = answer.shoal.steps;
    assert.deepEqual(answer.shoal, { live: true, steps: [step], restarts: 0 });
    assert.equal(answer.system_fingerprint, `step-${step}`);
    assert.deepEqual([answer.usage.prompt_tokens, answer.usage.completion_tokens], [15 + 4, 4 * 24]);
    assert.deepEqual(answer.choices.map(({ index }) => index), [0, 1, 2, 3]);
    const path = join(out, "checkpoints", `step-${String(step).padStart(9, "0")}`);
    assert.equal(answer.choices[1]!.text, await written({ checkpoint: path }, prompt, 8));
    assert.equal(answer.choices[2]!.text, await written({ url: admin }, "Some", 7));

    assert.equal((await post(admin, "/api/control", { action: "resume" })).status, 200);
    const stream = await post(admin, "/v1/completions", {
      ...{ model: "live:live", prompt, max_tokens: 90, seed: 1, stream: true },
    });
    let text = "", killed = false;
    for await (const piece of stream.body!.pipeThrough(new TextDecoderStream())) {
      text += piece;
      if (!killed && text.length > 2_500) {
        second.signal("SIGKILL");
        killed = true;
      }
    }
    const events = text.split("\n\n").filter((it) => it !== "").map((it) => it.replace(/^data: /, ""));
    assert.equal(events.pop(), "[DONE]", text.slice(-500));
    const answers = events.map((it) => JSON.parse(it) as Answer);
    const last = answers.at(-1)!;
    assert.equal(last.choices[0]!.finish_reason, "length");
    assert.equal(answers.reduce((sum, { choices }) => sum + [...choices[0]!.text].length, 0), 90);
    assert.ok(killed && last.shoal.restarts >= 1 && last.shoal.steps.length === last.shoal.restarts + 1);
    coordinator.interrupt();
    assert.equal(await coordinator.ended(), 0, coordinator.err.join("\n"));
    assert.equal(await first.ended(), 0, first.err.join("\n"));
    assert.equal(await third.ended(), 0, third.err.join("\n"));
  }));
