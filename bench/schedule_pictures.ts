// Draws the schedules of docs/algorithms.md, from the same simulation as the tables. `deno run --allow-write
// bench/schedule_pictures.ts` writes them into docs/images; a test fails if they are not what this draws.
import { compareSchedules, type Setting } from "../coordinator/plan/compare.ts";
import { svgGantt } from "../coordinator/plan/gantt.ts";

/** Four devices, eight micro-batches, F = B = W = 1, as the papers draw them. */
const EQUAL: Setting = {
  ...{ stages: 4, microBatches: 8, forward: 1, backward: 1, weightGrad: 1 },
  ...{ latency: 0, transfer: 0, mode: "duplex" },
};
/** The same with links on which a message takes as long as a micro-batch's compute. */
const FAR: Setting = { ...EQUAL, latency: 2.5, transfer: 0.5 };

/** Picture, schedule as the comparison names it, and where it runs. */
const PICTURES: readonly [file: string, schedule: string, setting: Setting][] = [
  ["gpipe", "gpipe", EQUAL],
  ["1f1b", "1f1b", EQUAL],
  ["interleaved", "interleaved, 2 chunks", EQUAL],
  ["breadth-first", "breadth-first, 2 chunks", EQUAL],
  ["chimera", "chimera", EQUAL],
  ["chimera-2-pairs", "chimera, 2 pairs", EQUAL],
  ["chimera-doubling", "chimera, forward doubling", EQUAL],
  ["chimera-halving", "chimera, backward halving", EQUAL],
  ["zb-h1", "zb-h1", EQUAL],
  ["zb-h2", "zb-h2", EQUAL],
  ["zb-v", "zb-v", EQUAL],
  ["dualpipe", "dualpipe", EQUAL],
  ["2bw", "2bw, asynchronous", EQUAL],
  ["dynamic", "dynamic", EQUAL],
  ["dynamic-mirrored", "dynamic, mirrored", EQUAL],
  ["1f1b-far", "1f1b", FAR],
  ["dynamic-far", "dynamic", FAR],
];

/** Path from the repository's root, and the drawing. */
export function pictures(): [path: string, svg: string][] {
  const rows = new Map([EQUAL, FAR].map((setting) => [setting, compareSchedules(setting)]));
  return PICTURES.map(([file, schedule, setting]) => {
    const row = rows.get(setting)!.find(({ name }) => name === schedule);
    if (row === undefined || "reason" in row) throw new Error(`no such schedule here: ${schedule}`);
    const title = setting === FAR ? `${schedule}, a hop of 3 s` : schedule;
    return [`docs/images/schedule-${file}.svg`, svgGantt(row.result, { title, tooltips: false }) + "\n"];
  });
}

if (import.meta.main) {
  for (const [path, svg] of pictures()) Deno.writeTextFileSync(new URL(`../${path}`, import.meta.url), svg);
}
