// Builds the three pages (web/index.html, web/admin.html, web/runs.html) into web/dist. In mode "fixtures" it builds only the
// page that shows every state of them, into .cache/fixtures; that page never ships with the others.
import { readFile } from "node:fs/promises";
import { defineConfig, type Plugin } from "vite";

/** Gives `import code from "x.wgsl" with { type: "text" }` the meaning that Deno gives it by itself. */
function textImports(): Plugin {
  return {
    name: "shoal-text-imports",
    enforce: "pre",
    async load(id) {
      if (!id.endsWith(".wgsl")) return null;
      const text = await readFile(id, "utf8");
      return { code: `export default ${JSON.stringify(text)};`, moduleType: "js" };
    },
  };
}

export default defineConfig(function configure({ mode }) {
  const fixtures = mode === "fixtures";
  return {
    root: "web",
    base: "/",
    plugins: [textImports()],
    worker: { format: "es", plugins: () => [textImports()] },
    build: {
      target: "esnext",
      outDir: fixtures ? "../.cache/fixtures" : "dist",
      emptyOutDir: true,
      manifest: true,
      // The content security policy has no data: URLs, so nothing may be inlined.
      assetsInlineLimit: 0,
      modulePreload: { polyfill: false },
      // The notes on plugin timings are for authors of bundlers.
      rolldownOptions: {
        checks: { pluginTimings: false },
        input: fixtures ? ["web/fixtures.html"] : ["web/index.html", "web/admin.html", "web/runs.html"],
      },
    },
  };
});
