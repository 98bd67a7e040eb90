// Where the program's own files are. Not where a run's files are (those are arguments).
import { resolve } from "node:path";

export const repositoryRoot = resolve(import.meta.dirname ?? ".", "..", "..");
