// Stages that the organizer wants certain peers to compute, kept in the run's folder so that a restart of the coordinator or of the peer
// does not forget them. A list of wishes, not a plan. What must stay true: a pin follows its computer, and no other one gets it.
import * as v from "valibot";
import { MARK } from "./bans.ts";
import { KeptList } from "./kept_list.ts";

/** As many as there are peers at a time; of more the oldest is forgotten. */
export const PINS_MAX = 200;

const PIN = v.strictObject({
  id: v.pipe(v.string(), v.regex(/^p[0-9]{1,6}$/)),
  /** The peer as it is called in this session of it. */
  peer: v.pipe(v.string(), v.maxLength(120)),
  /** By which its computer is known again; null: only the peer itself is, while it can return. */
  mark: v.nullable(v.pipe(v.string(), v.regex(MARK))),
  /** Index of a stage. */
  stage: v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(10_000)),
});

export type KeptPin = v.InferOutput<typeof PIN>;

export class Pins {
  readonly #list: KeptList<KeptPin>;

  /** @throws {ShoalError} bad-config if the folder has a list that cannot be read. */
  constructor(runDir: string) {
    this.#list = new KeptList<KeptPin>({
      ...{ runDir, name: "pins.json", letter: "p", most: PINS_MAX, entry: PIN },
      remedy: { damaged: "remove it and pin the computers anew", full: "take some pins away first" },
    });
  }

  get all(): readonly KeptPin[] {
    return this.#list.all;
  }

  /** Whatever was wished of the peer before is forgotten. @param stage null: it may compute any. */
  set(peer: string, mark: string | null, stage: number | null): void {
    this.#list.removeWhere((pin) => pin.peer === peer && pin.mark === mark);
    if (stage === null) return;
    const oldest = this.all[0];
    if (this.all.length >= PINS_MAX) this.#list.removeWhere((pin) => pin === oldest);
    this.#list.add({ peer, mark, stage });
  }

  /** The stage of a peer that is back under its own name. */
  ofReturned(peer: string, mark: string | null): number | null {
    return this.all.find((pin) => pin.peer === peer && pin.mark === mark)?.stage ?? null;
  }

  /**
   * The stage of a newcomer whose computer had a pin under another name, which it takes over.
   * @param isHere whether the peer of that name is still in: two tabs of one computer are two peers
   */
  ofNewcomer(peer: string, mark: string | null, isHere: (peer: string) => boolean): number | null {
    if (mark === null) return null;
    const found = this.all.find((pin) => pin.mark === mark && !isHere(pin.peer));
    if (found === undefined) return null;
    this.#list.removeWhere((pin) => pin === found);
    this.#list.add({ peer, mark, stage: found.stage });
    return found.stage;
  }
}
