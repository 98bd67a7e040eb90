// The demo's tabs get their engine in the address, before the token.
import assert from "node:assert/strict";
import { tabLink } from "./demo_peers.ts";

Deno.test("a tab's link names the engine before the #, and only if one was asked for", () => {
  const joinLink = "http://127.0.0.1:8080/#a-token";
  assert.equal(tabLink({ joinLink, engine: undefined }), joinLink);
  assert.equal(tabLink({ joinLink, engine: "tfjs-wasm" }), "http://127.0.0.1:8080/?engine=tfjs-wasm#a-token");
});
