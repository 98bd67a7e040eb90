// Where the addresses of a page's run begin: at the root, or at the run's place behind a coordinator of several.
import assert from "node:assert/strict";
import { baseOf, tokenOf } from "./api.ts";

Deno.test("api: a page's run begins at the folder that the page lies in", () => {
  const cases = {
    "http://a:1/#t": "http://a:1",
    "http://a:1/admin#t": "http://a:1",
    "https://a/?engine=cpu#t": "https://a",
    "http://a:1/r/evening-class/#t": "http://a:1/r/evening-class",
    "http://a:1/r/evening-class/admin#t": "http://a:1/r/evening-class",
    "http://a:1/r/evening-class/?engine=cpu#t": "http://a:1/r/evening-class",
  };
  for (const [href, base] of Object.entries(cases)) assert.equal(baseOf(href), base, href);
  assert.equal(tokenOf("# t "), "t");
});
