// The shader linker: replaces each import comment by the text of a library file, once per shader.
// It is not a preprocessor: no conditions, no macros, no generated code. The result is plain WGSL.
import { ShoalError } from "../wire/errors.ts";

const IMPORT_LINE = /^[ \t]*\/\/ #import (\S+)[ \t]*$/gm;
/** Nesting of imports; more means that two library files import each other. */
const IMPORT_DEPTH_MAX = 8;

/**
 * Resolves lines of the form `// #import lib/name.wgsl` against `library` (path -> text).
 * A file imported twice is inserted at its first import only. Errors: shader-invalid for an unknown path.
 */
export function linkShader(code: string, library: Readonly<Record<string, string>>): string {
  const seen = new Set<string>();
  function expand(text: string, depth: number): string {
    if (depth > IMPORT_DEPTH_MAX) {
      throw new ShoalError("shader-invalid", `imports nest deeper than ${IMPORT_DEPTH_MAX}; break the cycle`);
    }
    return text.replace(IMPORT_LINE, (_line, path: string) => {
      if (seen.has(path)) return "";
      const part = Object.hasOwn(library, path) ? library[path] : undefined;
      if (part === undefined) {
        const known = Object.keys(library).join(", ");
        throw new ShoalError(
          "shader-invalid",
          `unknown import ${path}; the library holds ${known || "nothing"}`,
        );
      }
      seen.add(path);
      return expand(part, depth + 1);
    });
  }
  return expand(code, 0);
}
