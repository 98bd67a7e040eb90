// Progress of a text on a terminal and elsewhere: one line drawn anew, or a line now and then, and nothing for a text that is done at once.
import assert from "node:assert/strict";
import { corpusProgress } from "./corpus_progress.ts";

function watched(tty: boolean) {
  let text = "", now = 0;
  const progress = corpusProgress({ write: (part) => text += part, tty, now: () => now });
  return {
    at(ms: number, bytes: number): void {
      now = ms;
      progress.show({ bytes, of: 100, tokens: 1234, documents: 0 });
    },
    end: progress.end,
    text: () => text,
  };
}

Deno.test("corpus progress: a terminal's line is drawn anew and taken away at the end", () => {
  const line = watched(true);
  line.at(100, 1);
  assert.equal(line.text(), "");
  line.at(200, 25);
  line.at(399, 26);
  assert.equal(
    line.text(),
    "\r\x1b[Kcutting the text into tokens [######------------------] 25% 1.2k tokens",
  );
  line.end();
  assert.ok(line.text().endsWith("tokens\r\x1b[K"));
});

Deno.test("corpus progress: elsewhere it is a plain line every ten seconds", () => {
  const line = watched(false);
  for (let ms = 0; ms <= 20_000; ms += 2500) line.at(ms, ms / 200);
  line.end();
  assert.deepEqual(line.text().split("\n").map((it) => /\d+%/.exec(it)?.[0]), ["50%", "100%", undefined]);
});
