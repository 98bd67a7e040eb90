// The documents against the code: every error code has its line, every link leads somewhere, every key is explained.
// Not a check of the prose.
import assert from "node:assert/strict";
import { CONFIG_KEYS } from "../peer/model/config.ts";
import { verbs } from "../coordinator/cli/usage.mjs";

const root = new URL("../", import.meta.url);

function text(path: string): string {
  return Deno.readTextFileSync(new URL(path, root));
}

function exists(path: string): boolean {
  try {
    Deno.statSync(new URL(path, root));
    return true;
  } catch {
    return false;
  }
}

function documents(): string[] {
  const docs = [...Deno.readDirSync(new URL("docs/", root))].map((entry) => `docs/${entry.name}`);
  return ["README.md", ...docs.filter((name) => name.endsWith(".md")).sort()];
}

Deno.test("docs/errors.md lists exactly the codes of peer/wire/errors.ts", () => {
  const union = /export type ErrorCode =([^;]+);/.exec(text("peer/wire/errors.ts"))?.[1] ?? "";
  const codes = [...union.matchAll(/"([a-z-]+)"/g)].map((match) => match[1]);
  const listed = [...text("docs/errors.md").matchAll(/^\| `([a-z-]+)` \| (.+) \| (.+) \|$/gm)];
  assert.ok(codes.length > 10);
  assert.deepEqual(listed.map((match) => match[1]), codes);
  for (const [line, , meaning, remedy] of listed) assert.ok(meaning && remedy, line);
});

Deno.test("docs/self-hosting.md explains every configuration key and every verb", () => {
  const page = text("docs/self-hosting.md");
  for (const key of CONFIG_KEYS) assert.ok(page.includes(`| \`${key}\` |`), key);
  for (const verb of verbs) assert.ok(page.includes(`\`shoal ${verb.name}\``), verb.name);
});

Deno.test("every relative link and picture of the documents leads to a file", () => {
  for (const page of documents()) {
    const folder = page.includes("/") ? page.slice(0, page.lastIndexOf("/") + 1) : "";
    for (const [, target = ""] of text(page).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^(https?:|#|mailto:)/.test(target)) continue;
      const path = new URL(folder + target.replace(/#.*/, ""), root).href.slice(root.href.length);
      assert.ok(exists(path), `${page} links to ${target}, which is not there`);
    }
  }
});
