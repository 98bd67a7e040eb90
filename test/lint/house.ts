// The house rules that a reader would otherwise have to remember, as one `deno lint` plugin: purity, who may import
// whom, sizes, named exports. Not a style checker (deno fmt and the recommended lint rules do that).
// Every rule here has a failing and a passing example in house_test.ts.
/// <reference lib="deno.unstable" />

/** Longest file and function, in lines; longer ones are several ideas in one place. */
export const FILE_LINES_MAX = 400;
export const FUNCTION_LINES_MAX = 70;

/** Folders whose code is a function of its arguments only. */
export const PURE_FOLDERS = [
  "peer/wire",
  "peer/core",
  "peer/schedule",
  "peer/exact",
  "peer/model",
  "coordinator/core",
  "coordinator/plan",
];

/** What the coordinator may take from the peer's folder; its composition root (coordinator/cli) is exempt. */
const COORDINATOR_MAY_IMPORT = ["peer/wire", "peer/schedule", "peer/model"];

/** What the pages may take from the peer's folder: data, and the one door to the worker. */
const WEB_MAY_IMPORT = ["peer/wire", "peer/browser.ts"];

/** Globals that read a clock, draw randomness, wait, or touch the world. */
const IMPURE_GLOBALS = new Set([
  "Date",
  "performance",
  "crypto",
  "setTimeout",
  "setInterval",
  "setImmediate",
  "queueMicrotask",
  "requestAnimationFrame",
  "Deno",
  "process",
  "navigator",
  "fetch",
  "WebSocket",
  "Worker",
  "localStorage",
]);

/** Functions whose last bit differs between JavaScript engines; the exact core may not call them. */
const INEXACT_MATH = new Set([
  ..."exp expm1 log log1p log2 log10 pow sin cos tan sinh cosh tanh asin acos atan atan2".split(" "),
  ..."asinh acosh atanh cbrt hypot".split(" "),
]);

/** Files whose tool demands a default export, and declarations of modules that have one. */
const DEFAULT_EXPORT_ALLOWED = /(^|\/)(vite\.config\.ts|test\/lint\/house\.ts)$|\.d\.ts$/;

const repositoryRoot = decodeURIComponent(new URL("../../", import.meta.url).pathname);

/** Path from the repository's root with forward slashes; a name outside it is taken as already relative. */
export function repositoryPath(filename: string): string {
  const path = filename.replaceAll("\\", "/").replace(/^file:\/\//, "");
  return path.startsWith(repositoryRoot) ? path.slice(repositoryRoot.length) : path.replace(/^\//, "");
}

/** Where a relative import of `from` leads, from the repository's root; null for a package or node: import. */
export function resolveImport(from: string, specifier: string): string | null {
  if (!specifier.startsWith(".")) return null;
  const parts = from.split("/").slice(0, -1);
  for (const part of specifier.split("/")) {
    if (part === "..") parts.pop();
    else if (part !== ".") parts.push(part);
  }
  return parts.join("/");
}

function inside(path: string, folders: readonly string[]): boolean {
  return folders.some((folder) => path === folder || path.startsWith(`${folder}/`));
}

function isTest(path: string): boolean {
  return path.endsWith("_test.ts") || path.endsWith("_test.tsx") || path.startsWith("test/");
}

/** Why `from` may not import `specifier`, or null if it may. A type vanishes at run time, so it cannot make code impure. */
export function importProblem(from: string, specifier: string, typeOnly: boolean): string | null {
  if (isTest(from)) return null;
  const target = resolveImport(from, specifier);
  if (target === null) {
    const impure = specifier.startsWith("node:") && inside(from, PURE_FOLDERS);
    return impure ? `pure code may not import "${specifier}"` : null;
  }
  if (inside(from, ["peer/wire"]) && !inside(target, ["peer/wire"])) {
    return `peer/wire imports nothing of ours outside itself, so not ${target}`;
  }
  if (inside(from, PURE_FOLDERS) && !typeOnly && !inside(target, PURE_FOLDERS)) {
    return `pure code may import only pure folders, so not ${target}`;
  }
  return layerProblem(from, target);
}

function layerProblem(from: string, target: string): string | null {
  const intoPeer = inside(target, ["peer"]);
  if (inside(from, ["coordinator"]) && !inside(from, ["coordinator/cli"]) && intoPeer) {
    if (!inside(target, COORDINATOR_MAY_IMPORT)) {
      return `coordinator/ may import only ${COORDINATOR_MAY_IMPORT.join(", ")} of peer/, so not ${target}`;
    }
  }
  if (inside(from, ["web"]) && intoPeer && !inside(target, WEB_MAY_IMPORT)) {
    return `web/ may import only ${WEB_MAY_IMPORT.join(" and ")} of peer/, so not ${target}`;
  }
  if (inside(from, ["peer"]) && inside(target, ["coordinator", "web"])) {
    return `peer/ knows neither coordinator/ nor web/, so not ${target}`;
  }
  return null;
}

/** True where an identifier only names a member or a key, not the global of that name. */
function isMereName(node: Deno.lint.Identifier): boolean {
  const parent = node.parent as { type: string; key?: unknown; property?: unknown; computed?: boolean };
  if (parent.type === "MemberExpression") return parent.property === node && !parent.computed;
  if (parent.type.startsWith("TS") || parent.type.startsWith("Import")) return true;
  return parent.key === node && !parent.computed;
}

function isCallOfMath(node: Deno.lint.MemberExpression, names: ReadonlySet<string>): boolean {
  return node.object.type === "Identifier" && node.object.name === "Math" &&
    node.property.type === "Identifier" && names.has(node.property.name);
}

const purity: Deno.lint.Rule = {
  create(context) {
    const path = repositoryPath(context.filename);
    if (isTest(path) || !inside(path, PURE_FOLDERS)) return {};
    const banned = new Set(inside(path, ["peer/exact"]) ? ["random", ...INEXACT_MATH] : ["random"]);
    return {
      Identifier(node) {
        if (!IMPURE_GLOBALS.has(node.name) || isMereName(node)) return;
        context.report({ node, message: `pure code may not use ${node.name}; take it as an argument` });
      },
      MemberExpression(node) {
        if (!isCallOfMath(node, banned)) return;
        const name = (node.property as Deno.lint.Identifier).name;
        context.report({
          node,
          message: `Math.${name} is not reproducible here; compute it from exact operations`,
        });
      },
    };
  },
};

const imports: Deno.lint.Rule = {
  create(context) {
    const path = repositoryPath(context.filename);
    function check(node: Deno.lint.Node, specifier: string, typeOnly: boolean): void {
      const message = importProblem(path, specifier, typeOnly);
      if (message !== null) context.report({ node, message });
    }
    return {
      ImportDeclaration(node) {
        check(node, node.source.value, node.importKind === "type");
      },
      ExportNamedDeclaration(node) {
        if (node.source) check(node, node.source.value, node.exportKind === "type");
      },
      ExportAllDeclaration(node) {
        check(node, node.source.value, node.exportKind === "type");
      },
      ImportExpression(node) {
        if (node.source.type === "Literal") check(node, String(node.source.value), false);
      },
    };
  },
};

const size: Deno.lint.Rule = {
  create(context) {
    function lines(node: { range: [number, number] }): number {
      return context.sourceCode.text.slice(node.range[0], node.range[1]).split("\n").length;
    }
    function checkFunction(
      node: Deno.lint.FunctionDeclaration | Deno.lint.FunctionExpression | Deno.lint.ArrowFunctionExpression,
    ): void {
      const count = lines(node);
      if (count <= FUNCTION_LINES_MAX) return;
      context.report({
        node,
        message: `a function of ${count} lines; split it (at most ${FUNCTION_LINES_MAX})`,
      });
    }
    return {
      Program(node) {
        const count = context.sourceCode.text.trimEnd().split("\n").length;
        if (count <= FILE_LINES_MAX) return;
        context.report({ node, message: `a file of ${count} lines; split it (at most ${FILE_LINES_MAX})` });
      },
      FunctionDeclaration: checkFunction,
      FunctionExpression: checkFunction,
      ArrowFunctionExpression: checkFunction,
    };
  },
};

const namedExports: Deno.lint.Rule = {
  create(context) {
    if (DEFAULT_EXPORT_ALLOWED.test(repositoryPath(context.filename))) return {};
    return {
      ExportDefaultDeclaration(node) {
        context.report({ node, message: "export by name; a default export has no name to search for" });
      },
    };
  },
};

const plugin: Deno.lint.Plugin = {
  name: "house",
  rules: { purity, imports, size, "named-exports": namedExports },
};

export default plugin;
