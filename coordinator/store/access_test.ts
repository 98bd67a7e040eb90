// Tests of the run's kept links: what was written comes back, whatever else is in the file gives fresh tokens.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readAccess, writeAccess } from "./access.ts";

Deno.test("access: a run's tokens and port come back, for its owner alone", async () => {
  const dir = await Deno.makeTempDir();
  try {
    const first = readAccess(dir);
    assert.match(first.joinToken, /^[\w-]{22}$/);
    assert.notEqual(first.joinToken, first.adminToken);
    writeAccess(dir, { ...first, port: 4321 });
    assert.deepEqual(readAccess(dir), { ...first, port: 4321 });
    const { mode } = await Deno.stat(join(dir, "access.json"));
    assert.equal((mode ?? 0) & 0o077, 0);
  } finally {
    await Deno.remove(dir, { recursive: true });
  }
});

Deno.test("access: a damaged or foreign file gives fresh tokens, never an exception", async () => {
  const dir = await Deno.makeTempDir();
  try {
    const token = "abcdefghijklmnopqrstuv";
    const bad = ["", "null", "[]", "{", '{"joinToken":1}'];
    for (const port of [-1, 1.5, 70_000, "80"]) {
      bad.push(JSON.stringify({ joinToken: token, adminToken: token, port }));
    }
    for (const text of bad) {
      await Deno.writeTextFile(join(dir, "access.json"), text);
      const access = readAccess(dir);
      assert.equal(access.port, 0, text);
      assert.notEqual(access.joinToken, token, text);
    }
  } finally {
    await Deno.remove(dir, { recursive: true });
  }
});
