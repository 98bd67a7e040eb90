// Which test file belongs to which group, and how a report is counted: the decisions of run.mjs, without its I/O.
// Not a list of files: a new test is found by its name.
// @ts-check

/** In the order in which they run: the cheap ones first. */
export const testGroups = ["fmt", "lint", "check", "unit", "kernel", "sim", "e2e"];

/** @type {[string, string][]} */
const groupFolders = [["test/kernels/", "kernel"], ["test/sim/", "sim"], ["test/e2e/", "e2e"]];

/**
 * The group of a file, or null if it is no test.
 * @param {string} path from the repository's root
 * @returns {string | null}
 */
export function groupOf(path) {
  if (!/_test\.tsx?$/.test(path)) return null;
  return groupFolders.find(([folder]) => path.startsWith(folder))?.[1] ?? "unit";
}

/**
 * Counts the tests (and steps) of a JUnit report of `deno test`. A skipped test counts as failed: nobody may switch
 * a test off and stay green.
 * @param {string} xml
 * @returns {{ passed: number; failed: number }}
 */
export function countJunit(xml) {
  const cases = xml.split("<testcase ").slice(1);
  const failed = cases.filter((text) => /<(failure|error|skipped)[ />]/.test(text)).length;
  return { passed: cases.length - failed, failed };
}
