// Tests of the screens that stop the work: each names its cause and a remedy, and unknown codes are no blank page.
import assert from "node:assert/strict";
import { invite, snapshot } from "./fixtures_data.ts";
import { noticeForPhase, noticeForRefusal, noticeForRun } from "./view_model_notice.ts";

const CODES = [
  "no-token",
  "bad-token",
  "wrong-version",
  "run-full",
  "kicked",
  "banned",
  "offline",
  "device-lost",
  "out-of-memory",
];

for (const code of CODES) {
  Deno.test(`code ${code} has a title, a cause and a remedy of its own`, function test() {
    const notice = noticeForRefusal({ code, message: "" }, "Room 12");
    assert.notEqual(notice.title, "Something went wrong");
    assert.notEqual(notice.what, "");
    assert.notEqual(notice.remedy, "");
    assert.doesNotMatch(notice.remedy, /\{|\}/);
  });
}

Deno.test("the coordinator's own words replace the general cause", function test() {
  const message = "the run takes at most 64 peers";
  assert.equal(noticeForRefusal({ code: "run-full", message }, null).what, message);
});

Deno.test("an unknown code still says what happened and offers a way out", function test() {
  const notice = noticeForRefusal({ code: "from-the-future", message: "slot 3 is free twice" }, null);
  assert.equal(notice.title, "Something went wrong");
  assert.equal(notice.what, "slot 3 is free twice");
  assert.equal(notice.button, "Reload the page");
});

Deno.test("a code that names a property of every object is unknown too", function test() {
  assert.equal(noticeForRefusal({ code: "constructor", message: "x" }, null).title, "Something went wrong");
});

Deno.test("remedies name the operator, or whoever sent the link, with a capital at a sentence's start", function test() {
  assert.match(noticeForRefusal({ code: "bad-token", message: "" }, "Room 12").remedy, /Ask Room 12 for/);
  assert.match(
    noticeForRefusal({ code: "bad-token", message: "" }, null).remedy,
    /Ask the person who sent it for/,
  );
  assert.match(
    noticeForRefusal({ code: "no-token", message: "" }, null).remedy,
    /\. The person who sent it can/,
  );
});

Deno.test("an operator's name is text, never a replacement pattern", function test() {
  assert.match(noticeForRefusal({ code: "bad-token", message: "" }, "A$&B").remedy, /Ask A\$&B for/);
});

Deno.test("working phases are no notices", function test() {
  assert.equal(noticeForPhase({ ...snapshot, phase: "training" }, null), null);
  assert.equal(noticeForPhase({ ...snapshot, phase: "paused" }, null), null);
});

Deno.test("a run that is over takes no click", function test() {
  assert.equal(noticeForRun({ ...invite, state: "training" }), null);
  assert.equal(noticeForRun({ ...invite, state: "finished" })?.tone, "good");
  assert.equal(noticeForRun({ ...invite, state: "failed" })?.tone, "bad");
});

Deno.test("being refused for a cause is no removal, and a device that was never there is not lost", function test() {
  const title = (phase: "kicked" | "device-lost" | "left", code: string) =>
    noticeForPhase({ ...snapshot, phase, code, reason: "" }, null)?.title;
  assert.equal(title("kicked", "run-full"), "The run has all the computers it can use");
  assert.equal(title("kicked", "internal"), "This computer was removed from the run");
  assert.equal(title("kicked", "constructor"), "This computer was removed from the run");
  assert.equal(title("device-lost", "no-adapter"), "No graphics adapter available");
  assert.equal(title("left", "done"), "This computer has left the run");
});
