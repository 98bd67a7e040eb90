// The guardian ends what a run started and nothing else, also when the run itself is killed.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { Guardian } from "./guardian.ts";

function sleeper(environment: Readonly<Record<string, string>>): Deno.ChildProcess {
  return new Deno.Command("sleep", { args: ["600"], env: environment, stdout: "null", stderr: "null" })
    .spawn();
}

async function exists(path: string): Promise<boolean> {
  return await Deno.stat(path).then(() => true, () => false);
}

Deno.test("guardian: marked processes and folders go with it; a process of somebody else stays", async () => {
  const guardian = new Guardian();
  const folder = await guardian.folder("shoal-guardian-");
  await Deno.writeTextFile(`${folder}/file`, "content");
  const ours = sleeper(guardian.environment);
  const foreign = sleeper({});
  for (const { pid } of [ours, foreign]) await guardian.note({ kind: "pid", value: pid });
  await guardian[Symbol.asyncDispose]();
  assert.equal((await ours.status).signal, "SIGKILL");
  assert.equal(await exists(folder), false);
  foreign.kill("SIGTERM");
  assert.equal((await foreign.status).signal, "SIGTERM", "the guardian ended a process without its mark");
});

/** Makes a folder and a process, says where, and waits for its death. */
const OWNER = `
const { Guardian } = await import(${JSON.stringify(new URL("./guardian.ts", import.meta.url).href)});
const guardian = new Guardian();
const folder = await guardian.folder("shoal-guardian-");
const { pid } = new Deno.Command("sleep", { args: ["600"], env: guardian.environment, stdout: "null" }).spawn();
await guardian.note({ kind: "pid", value: pid });
console.log(JSON.stringify({ folder, pid }));
setInterval(() => {}, 1000);
`;

Deno.test("guardian: it cleans up after an owner that was killed", async () => {
  const config = fileURLToPath(new URL("../../deno.json", import.meta.url));
  const owner = new Deno.Command(Deno.execPath(), {
    args: ["eval", "--config", config, OWNER],
    ...{ stdout: "piped", stderr: "inherit" },
  }).spawn();
  const reader = owner.stdout.pipeThrough(new TextDecoderStream()).getReader();
  const { folder, pid } = JSON.parse((await reader.read()).value ?? "{}");
  assert.ok(await exists(folder) && await exists(`/proc/${pid}`));
  owner.kill("SIGKILL");
  await owner.status;
  await reader.cancel();
  while (await exists(folder)) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(await exists(`/proc/${pid}/environ`) && await isSleeping(pid), false);
});

/** A killed process may still be listed, as a zombie without a command line. */
async function isSleeping(pid: number): Promise<boolean> {
  return (await Deno.readTextFile(`/proc/${pid}/cmdline`).catch(() => "")).startsWith("sleep");
}
