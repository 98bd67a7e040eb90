// Links between peers in a simulation: who is connected to whom, as each end sees it. A link that breaks is noticed by each end
// in its own time; what is sent meanwhile is lost. Not the protocol of connecting; a world that connects succeeds after a while.
import type { Random } from "../support/random.ts";
import type { Clock } from "./clock.ts";
import type { Network } from "./network.ts";

/** How long an end may take to notice that its link is closed, ms. */
const NOTICE_MS = 200;
const NOTICE_DEATH_MS = 300;
const NOTICE_LEAST_MS = 5;
/** Connecting takes this long at least, and so much more by chance. */
const CONNECT_LEAST_MS = 10;
const CONNECT_SPREAD_MS = 100;

export interface LinksWorld {
  readonly clock: Clock;
  readonly random: Random;
  readonly network: Network;
  readonly peers: ReadonlyMap<string, { dead: boolean }>;
}

export class Links {
  readonly #world: LinksWorld;
  readonly #onLink: (id: string, other: string, open: boolean) => void;
  /** The other ends that an end believes to be connected to. */
  readonly #open = new Map<string, Set<string>>();
  /** Pairs that broke, and how many of their ends have not noticed. */
  readonly #broken = new Map<string, number>();

  constructor(world: LinksWorld, onLink: (id: string, other: string, open: boolean) => void) {
    this.#world = world;
    this.#onLink = onLink;
  }

  /** An end wants a link. It is told later, and at once if it has one. */
  connect(id: string, other: string): void {
    const broken = this.#broken.has(pairOf(id, other));
    if (this.#of(id).has(other) && !broken) return this.#tell(id, other, true);
    const { clock, random } = this.#world;
    clock.after(CONNECT_LEAST_MS + random() * CONNECT_SPREAD_MS, () => {
      if (this.#isDead(id) || this.#isDead(other)) return this.#tell(id, other, false);
      if (this.#broken.has(pairOf(id, other))) return this.connect(id, other);
      this.#of(id).add(other);
      this.#tell(id, other, true);
    });
  }

  /** An end gives a link up that it needs no more. */
  disconnect(id: string, other: string): void {
    this.#of(id).delete(other);
  }

  /** Whether what is sent now can arrive. */
  carries(id: string, other: string): boolean {
    return !this.#broken.has(pairOf(id, other));
  }

  /** The link breaks between living peers; frames under way are lost. */
  cut(a: string, b: string, lateMs = NOTICE_MS): void {
    if (a === b) return;
    const { clock, random, network } = this.#world;
    const pair = pairOf(a, b);
    network.cut(a, b);
    this.#broken.set(pair, (this.#broken.get(pair) ?? 0) + 2);
    for (const [id, other] of [[a, b], [b, a]] as const) {
      clock.after(NOTICE_LEAST_MS + random() * lateMs, () => {
        const unaware = this.#broken.get(pair)! - 1;
        if (unaware === 0) this.#broken.delete(pair);
        else this.#broken.set(pair, unaware);
        this.#tell(id, other, false);
      });
    }
  }

  /** A process is gone: the other ends of its links notice one by one. */
  end(id: string): void {
    const { clock, random } = this.#world;
    for (const other of this.#of(id)) {
      clock.after(NOTICE_LEAST_MS + random() * NOTICE_DEATH_MS, () => this.#tell(other, id, false));
    }
  }

  /** Pairs of living peers connected at both ends. */
  pairs(): [string, string][] {
    return [...this.#open].flatMap(([id, others]) =>
      [...others].filter((other) => id < other && this.#of(other).has(id) && !this.#isDead(other))
        .filter(() => !this.#isDead(id)).map((other): [string, string] => [id, other])
    );
  }

  #tell(id: string, other: string, open: boolean): void {
    if (!open) this.#of(id).delete(other);
    this.#world.clock.after(0, () => this.#onLink(id, other, open));
  }

  #of(id: string): Set<string> {
    const known = this.#open.get(id);
    if (known !== undefined) return known;
    const none = new Set<string>();
    this.#open.set(id, none);
    return none;
  }

  #isDead(id: string): boolean {
    return this.#world.peers.get(id)?.dead ?? true;
  }
}

function pairOf(a: string, b: string): string {
  return a < b ? `${a}/${b}` : `${b}/${a}`;
}
