// The pictures in docs/images are what the simulator draws today, and docs/algorithms.md shows each of them.
import assert from "node:assert/strict";
import { pictures } from "./schedule_pictures.ts";

const root = new URL("../", import.meta.url);

Deno.test("docs/images holds the schedules as they are simulated", () => {
  for (const [path, svg] of pictures()) {
    const remedy = `${path} is old: deno run --allow-write bench/schedule_pictures.ts`;
    assert.ok(Deno.readTextFileSync(new URL(path, root)) === svg, remedy);
  }
});

Deno.test("docs/algorithms.md shows every picture, with a text for those who cannot see it", () => {
  const page = Deno.readTextFileSync(new URL("docs/algorithms.md", root));
  for (const [path] of pictures()) {
    const name = path.slice("docs/".length);
    const alt = new RegExp(`!\\[(.{20,})\\]\\(${name.replaceAll(".", "\\.")}\\)`).exec(page);
    assert.ok(alt !== null, `${name} is not shown with a description`);
  }
});
