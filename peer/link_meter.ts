// What a peer tells of its links: the shortest round trip of late, the rate, the way the bytes go. Pure; fed with what the
// links count, as often as it is read.
import type { LinkStats } from "./net/link.ts";
import { type LinkFigures, MEASURES_MAX } from "./wire/measures.ts";

/** Readings that the shortest round trip is taken of: four seconds of heartbeats. Longer ones waited behind frames. */
const READINGS = 16;

export class LinkMeter {
  #readings = new Map<string, number[]>();

  /** What all links count now; links that are gone are forgotten. */
  observe(links: Readonly<Record<string, LinkStats>>): void {
    for (const peer of this.#readings.keys()) if (links[peer] === undefined) this.#readings.delete(peer);
    for (const [peer, { rttMs }] of Object.entries(links)) {
      if (!(rttMs > 0)) continue;
      this.#readings.set(peer, [...this.#readings.get(peer) ?? [], rttMs].slice(-READINGS));
    }
  }

  /** Of at most MEASURES_MAX links that have answered a ping. */
  figures(links: Readonly<Record<string, LinkStats>>): LinkFigures[] {
    return Object.entries(links).flatMap(([peer, { upBytesPerS, path }]): LinkFigures[] => {
      const readings = this.#readings.get(peer);
      return readings === undefined ? [] : [{ peer, rttMs: Math.min(...readings), upBytesPerS, path }];
    }).slice(0, MEASURES_MAX);
  }
}
