// The tab's choice of engine by its address: an unknown one is refused in words before anything is asked of the coordinator;
// and what nobody chose is not loaded. That engines compute and train in tabs is shown by browser_test.ts, swarm_test.ts and
// chaos_test.ts.
import assert from "node:assert/strict";
import { buildPages, openBrowser, serveBuilt } from "./pages_support.ts";

Deno.test("an address that asks for an unknown engine says so, and asks nothing of the coordinator", async () => {
  const asked: string[] = [];
  await using site = serveBuilt(await buildPages("production"), (request) => {
    const { pathname } = new URL(request.url);
    if (!pathname.startsWith("/api/")) return null;
    asked.push(pathname);
    return new Response("{}", { status: 500 });
  });
  const browser = await openBrowser();
  try {
    const page = await browser.newPage();
    await page.goto(`${site.origin}/?engine=abacus#some-token`);
    await page.getByText(/asks for the engine "abacus".*\?engine=tfjs-wasm/).first().waitFor();
    assert.deepEqual(asked, []);
    const answered = page.waitForResponse(/\/api\/invite/);
    await page.goto(`${site.origin}/?engine=cpu#some-token`);
    await answered;
  } finally {
    await browser.close();
  }
});

/** What only tfjs' code contains. */
const TFJS = /tfjs-backend-wasm|WASM_HAS_SIMD_SUPPORT/;

Deno.test("no page and no worker loads tfjs before it was chosen, and its binaries are the coordinator's own", async () => {
  const { files } = await buildPages("production", { whole: true });
  const scripts = new Map<string, string>();
  for (const [name, bytes] of files) {
    if (name.endsWith(".js")) scripts.set(name, new TextDecoder().decode(bytes));
  }
  const holders = [...scripts].filter(([, code]) => TFJS.test(code)).map(([name]) => name);
  assert.ok(holders.length > 0, "tfjs is nowhere, so this test would see nothing");
  const entries = ["index.html", "admin.html"].flatMap((page) =>
    scriptsOf(new TextDecoder().decode(files.get(page)))
  );
  const worker = [...scripts.keys()].find((name) => /worker-[^/]*\.js$/.test(name));
  assert.ok(entries.length >= 2 && worker, `entries ${entries}, worker ${worker}`);
  // The page's half of the peer is loaded after the first screen, and then starts the worker.
  const browser = [...scripts.keys()].find((name) => /browser-[^/]*\.js$/.test(name));
  for (const entry of [...entries, browser!, worker]) {
    for (const name of reached(entry, scripts)) assert.ok(!holders.includes(name), `${entry} loads ${name}`);
  }
  const binaries = [...files.keys()].filter((name) => name.endsWith(".wasm"));
  assert.equal(binaries.length, 2, binaries.join(", "));
  assert.ok(
    holders.some((name) => binaries.every((file) => scripts.get(name)!.includes(file.split("/").at(-1)!))),
  );
});

/** Scripts that a page starts with. */
function scriptsOf(html: string): string[] {
  return [...html.matchAll(/(?:src|href)="\/([^"]+\.js)"/g)].map(([, name]) => name!);
}

/** A script and everything that it imports without being asked. */
function reached(entry: string, scripts: ReadonlyMap<string, string>, seen = new Set<string>()): Set<string> {
  if (seen.has(entry)) return seen;
  seen.add(entry);
  const code = scripts.get(entry) ?? assert.fail(`no script ${entry}`);
  const folder = entry.replace(/[^/]*$/, "");
  for (const [, name] of code.matchAll(/(?:import|from)\s*["'`]\.\/([^"'`]+\.js)["'`]/g)) {
    reached(folder + name, scripts, seen);
  }
  return seen;
}
