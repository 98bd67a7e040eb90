// What the browser tells of the computer's situation: power, whether the tab is in front, whether anybody uses the computer, the
// time of day. It decides nothing; peer/wire/limits.ts does.
import type { Situation } from "../peer/wire/limits.ts";
import type { Features } from "./view_model_tab_limits.ts";

interface Battery extends EventTarget {
  charging: boolean;
  level: number;
}
interface IdleWatcher extends EventTarget {
  userState: "active" | "idle" | null;
  start(options: { threshold: number }): Promise<void>;
}
interface IdleWatchers {
  new (): IdleWatcher;
  requestPermission(): Promise<string>;
}

/** The shortest time without a key or a movement that the interface knows. */
const IDLE_AFTER_MS = 60_000;

/** A browser that does not answer in this time counts as one that does not tell; nobody waits longer after a press. */
const POWER_MS = 1_000;

export type Surroundings = Omit<Situation, "sentToday" | "receivedToday">;

export function featuresOf(): Features {
  return {
    battery: "getBattery" in navigator,
    idle: "IdleDetector" in globalThis,
    wakeLock: "wakeLock" in navigator,
  };
}

export class Watch {
  readonly #onChange: () => void;
  #battery: Battery | null = null;
  #idle: IdleWatcher | null = null;

  /** @param onChange something is otherwise than before, or may be */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
    document.addEventListener("visibilitychange", onChange);
  }

  /** Where there is no battery interface nothing is known of the power; a computer without a battery is always charging. */
  async watchPower(): Promise<void> {
    const { getBattery } = navigator as Navigator & { getBattery?(): Promise<Battery> };
    if (this.#battery !== null || getBattery === undefined) return;
    const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), POWER_MS));
    this.#battery = await Promise.race([getBattery.call(navigator).catch(() => null), late]);
    if (this.#battery === null) return;
    for (const event of ["chargingchange", "levelchange"]) {
      this.#battery.addEventListener(event, this.#onChange);
    }
    this.#onChange();
  }

  /** Has to follow a press: the browser asks for permission. False if it was not given. */
  async watchIdle(): Promise<boolean> {
    const { IdleDetector } = globalThis as { IdleDetector?: IdleWatchers };
    if (this.#idle !== null) return true;
    if (IdleDetector === undefined) return false;
    try {
      if (!await mayKnowIdle(IdleDetector)) return false;
      const idle = new IdleDetector();
      idle.addEventListener("change", this.#onChange);
      await idle.start({ threshold: IDLE_AFTER_MS });
      this.#idle = idle;
      return true;
    } catch {
      return false;
    }
  }

  now(): Surroundings {
    const date = new Date();
    const state = this.#idle?.userState ?? null;
    return {
      plugged: this.#battery?.charging ?? null,
      battery: this.#battery?.level ?? null,
      visible: !document.hidden,
      idle: state === null ? null : state === "idle",
      minute: date.getHours() * 60 + date.getMinutes(),
    };
  }
}

/** Asks the person once; afterwards the browser remembers, and asking anew would need another press. */
async function mayKnowIdle(watchers: IdleWatchers): Promise<boolean> {
  const { state } = await navigator.permissions.query({ name: "idle-detection" as PermissionName });
  return state === "granted" || await watchers.requestPermission() === "granted";
}

/** Keeps the screen lit while it is wanted and the tab is in front; the browser lets go of it whenever the tab is hidden. */
export class ScreenLight {
  #wanted = false;
  #held: { release(): Promise<void> } | null = null;

  constructor() {
    document.addEventListener("visibilitychange", () => void this.#take());
  }

  async set(wanted: boolean): Promise<void> {
    this.#wanted = wanted;
    if (wanted) return await this.#take();
    const held = this.#held;
    this.#held = null;
    await held?.release().catch(() => {});
  }

  async #take(): Promise<void> {
    if (!this.#wanted || document.hidden) return;
    try {
      this.#held = await navigator.wakeLock.request("screen");
    } catch {
      // Low battery, or a browser that does not want to: the screen goes dark as usual.
    }
  }
}
