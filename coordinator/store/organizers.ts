// Further organizers of a run, by name: each has an admin link of their own, so that an order says whose it is. Kept in the run's
// folder. The first organizer, whose link was printed at the start, is not among them, and alone makes and withdraws these.
import * as v from "valibot";
import { randomToken } from "./access.ts";
import { KeptList } from "./kept_list.ts";

/** More people than that do not steer one run. */
export const ORGANIZERS_MAX = 50;
export const NAME_CHARS_MAX = 40;

const ORGANIZER = v.strictObject({
  id: v.pipe(v.string(), v.regex(/^o[0-9]{1,6}$/)),
  name: v.pipe(v.string(), v.minLength(1), v.maxLength(NAME_CHARS_MAX)),
  token: v.pipe(v.string(), v.regex(/^[A-Za-z0-9_-]{16,64}$/)),
});

export type Organizer = v.InferOutput<typeof ORGANIZER>;

export class Organizers {
  readonly #list: KeptList<Organizer>;

  constructor(runDir: string) {
    this.#list = new KeptList<Organizer>({
      ...{ runDir, name: "organizers.json", letter: "o", most: ORGANIZERS_MAX, entry: ORGANIZER },
      remedy: { damaged: "remove it and name them again", full: "withdraw some of their links first" },
    });
  }

  get all(): readonly Organizer[] {
    return this.#list.all;
  }

  /** @throws {ShoalError} usage if there are too many. */
  add(name: string): Organizer {
    return this.#list.add({ name, token: randomToken() });
  }

  remove(id: string): Organizer | null {
    return this.#list.removeWhere((it) => it.id === id)[0] ?? null;
  }
}
