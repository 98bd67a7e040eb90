// A join link read: the address where its run's paths begin, and the token.
import assert from "node:assert/strict";
import { readJoinLink } from "./deno.ts";

Deno.test("join link: the run's place is part of its address, and no link is taken for one without a token", () => {
  assert.deepEqual(readJoinLink("http://a:1/#t"), { origin: "http://a:1", token: "t" });
  assert.deepEqual(readJoinLink("https://a/r/evening-class/#t"), {
    origin: "https://a/r/evening-class",
    token: "t",
  });
  assert.deepEqual(readJoinLink("https://a/r/evening-class#t"), {
    origin: "https://a/r/evening-class",
    token: "t",
  });
  assert.equal(readJoinLink("https://a/r/x/?engine=cpu#t").origin, "https://a/r/x");
  // An admin link given by mistake reaches the run, which says that its token lets no peer in.
  assert.equal(readJoinLink("https://a/r/x/admin#t").origin, "https://a/r/x");
  for (const wrong of ["http://a:1/", "ws://a/#t", "a#t", ""]) {
    assert.throws(() => readJoinLink(wrong), /is not a join link/);
  }
});
