// The tab's choice of engine by its address: an unknown one is refused in words before anything is asked of the coordinator.
// That `?engine=cpu` computes the same bits as everywhere is shown by chaos_test.ts.
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
    await page.getByText(/asks for the engine "abacus".*\?engine=cpu/).first().waitFor();
    assert.deepEqual(asked, []);
    const answered = page.waitForResponse(/\/api\/invite/);
    await page.goto(`${site.origin}/?engine=cpu#some-token`);
    await answered;
  } finally {
    await browser.close();
  }
});
