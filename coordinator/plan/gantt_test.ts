// The drawings show what the trace says: letters at their times, one bar per operation, safe text.
import assert from "node:assert/strict";
import { gpipe, oneForwardOneBackward } from "../../peer/schedule/emitters.ts";
import { chimera } from "../../peer/schedule/emitters_chimera.ts";
import { zbH1 } from "../../peer/schedule/emitters_split.ts";
import { svgGantt, textGantt } from "./gantt.ts";
import { NO_NETWORK } from "./network.ts";
import { simulate } from "./simulate.ts";

const EQUAL = { F: 1, B: 1, W: 1 };

Deno.test("text: one column per second draws the textbook picture", () => {
  const run = simulate(gpipe(2, 2), { F: 1, B: 0.5, W: 0.5 }, NO_NETWORK);
  const lines = textGantt(run, { columns: run.makespan }).split("\n");
  assert.deepEqual(lines.slice(0, 2), ["0 |FF..XX|", "1 |.FFXX.|"]);
  assert.match(lines[2]!, /a column is 1\.00 s/);
});

Deno.test("text: a split backward shows its parts", () => {
  const run = simulate(zbH1(2, 2), EQUAL, NO_NETWORK);
  assert.deepEqual(textGantt(run, { columns: run.makespan }).split("\n").slice(0, 2), [
    "0 |FF.BWBW|",
    "1 |.FBFBWW|",
  ]);
});

Deno.test("text: the width is bounded and device numbers line up", () => {
  const run = simulate(oneForwardOneBackward(11, 3), EQUAL, NO_NETWORK);
  const lines = textGantt(run, { columns: 1e9 }).split("\n").slice(0, 11);
  for (const line of lines) assert.equal(line.length, 400 + "10 ||".length);
  assert.ok(lines[0]!.startsWith(" 0 |") && lines[10]!.startsWith("10 |"));
});

Deno.test("svg: a bar with a tooltip per operation, inside the drawing", () => {
  const run = simulate(zbH1(3, 4), EQUAL, { latency: 0.5, transfer: 0.1, mode: "duplex" });
  const svg = svgGantt(run, { title: "zb-h1" });
  const bars = [...svg.matchAll(/<rect class="(F|B|W|BW)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"/g)];
  assert.equal(bars.length, run.trace.length);
  for (const bar of bars) assert.ok(Number(bar[2]) + Number(bar[3]) <= 960 - 8 + 0.01);
  assert.equal(svg.match(/<title>/g)!.length, run.trace.length);
  assert.match(svg, /<desc id="d">[\d.]+ s, [\d.]+ % idle<\/desc>/);
});

Deno.test("svg: a title cannot break out of its element", () => {
  const svg = svgGantt(simulate(gpipe(1, 1), EQUAL, NO_NETWORK), { title: '</title><script a="&">' });
  assert.ok(!svg.includes("<script"));
  assert.ok(svg.includes("&lt;/title&gt;&lt;script a=&quot;&amp;&quot;&gt;"));
});

Deno.test("the opposite direction has small letters, and the legend says so", () => {
  const run = simulate(chimera(2, 2), EQUAL, NO_NETWORK);
  const lines = textGantt(run, { columns: run.makespan }).split("\n");
  assert.deepEqual(lines.slice(0, 2), ["0 |FfxxXX|", "1 |fFXXxx|"]);
  assert.match(lines[2]!, /lower case: the opposite direction$/);
  assert.match(svgGantt(run, { title: "chimera" }), /lower case: the opposite direction/);
  assert.ok(!textGantt(simulate(gpipe(2, 2), EQUAL, NO_NETWORK)).includes("lower case"));
});

Deno.test("svg: wide bars name their micro-batch, and tooltips can be left out", () => {
  const run = simulate(gpipe(2, 3), EQUAL, NO_NETWORK);
  const svg = svgGantt(run, { title: "gpipe", tooltips: false });
  for (const label of ["F0", "F2", "X1"]) assert.ok(svg.includes(`>${label}</text>`), label);
  assert.equal(svg.match(/<title/g)!.length, 1);
  const narrow = svgGantt(run, { title: "gpipe", width: MARGINS + run.makespan * 15 });
  assert.ok(narrow.includes(">F</text>") && !narrow.includes(">F0</text>"));
});

/** Of the drawing, left and right of the bars. */
const MARGINS = 80;
