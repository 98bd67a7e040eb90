// I5 as a number: for a plan's faults, the most virtual time between two commits. Each fault may cost its own length, or the time
// in which it is detected where that is shorter, and what follows from it; faults that overlap add up. No measuring here. A bound
// that grows with what the faults do not touch would prove nothing, so the run's length is in it only where nobody is left.
import type { Fault } from "./faults.ts";

/** A step takes 300 ms, or twice that with the evaluation before it; a view that comes up costs as much again. */
export const CALM_GAP_MS = 1_200;
/**
 * A departure: its closed socket is noticed within 205 ms, three round trips take 250 ms, at most the whole share of one peer is
 * computed again, and the last share to be lost may be the one that was just done again.
 */
export const DEPARTURE_MS = 1_800;
/** A peer whose silence is all there is to notice is put out after so long at most; a tick later it shows. */
const DETECTION_MS = 15_500;
/** The same for one that loads, or has no engine yet for a stage that it holds. */
const COMPILING_MS = 60_500;
/** A total that does not come is asked of another holder after so long. */
const TOTAL_MS = 10_500;
/** A restarted coordinator does without those that do not come back after so long; knocking comes on top. */
const REGATHER_MS = 9_000;
/** The same where they may have taken a stage with them: peers knock for a minute, and might still come. */
const REGATHER_ALL_MS = 61_000;

/**
 * Most virtual ms between two commits while these faults last; Infinity where nothing but the round's limit ends them. If nobody
 * is left, new peers come when everything is healed, at `healAt`.
 */
export function gapMost(
  faults: readonly Fault[],
  { peers, healAt }: { peers: number; healAt: number },
): number {
  const costs = faults.reduce((sum, fault) => sum + costOf(fault), CALM_GAP_MS);
  const regathers = faults.some((fault) => fault.do.startsWith("coordinator"));
  const loses = faults.some((fault) => LOSING.includes(fault.do));
  // A clock that is set back while the peers are awaited makes the wait longer.
  const setBack = faults.reduce(
    (sum, fault) => sum + (fault.do === "clock" ? Math.max(0, -fault.byMs) : 0),
    0,
  );
  return costs + (regathers && loses ? REGATHER_ALL_MS + setBack : 0) +
    (deaths(faults) >= peers ? healAt : 0);
}

/** Peers that die, less those that come; a stage has two holders as a rule. */
function deaths(faults: readonly Fault[]): number {
  const of = (fault: Fault) =>
    fault.do === "crash-stage" ? 2 : fault.do.startsWith("crash") ? 1 : fault.do === "join" ? -1 : 0;
  return faults.reduce((sum, fault) => sum + of(fault), 0);
}

/** What comes on top while a peer compiles: it may hold the thread that sends heartbeats, so its silence means nothing for longer. */
export function patience(faults: readonly Fault[]): number {
  return faults.some((fault) => SILENT.includes(fault.do)) ? COMPILING_MS - DETECTION_MS : 0;
}

/** Under these a peer that lives is not heard. */
const SILENT: readonly Fault["do"][] = ["mute", "freeze", "partition", "clog", "swizzle"];

/** After these a peer may be gone for good. */
const LOSING: readonly Fault["do"][] = [
  "crash",
  "crash-in",
  "crash-stage",
  "mute",
  "freeze",
  "partition",
  "leave",
];

function costOf(fault: Fault): number {
  switch (fault.do) {
    case "replay":
    case "clock":
    case "timers":
    case "slow":
      return 0;
    case "replan":
    case "crash":
    case "crash-in":
    case "crash-stage":
    case "join":
    case "leave":
      return DEPARTURE_MS;
    case "pause":
      return 2 * DEPARTURE_MS;
    case "mute":
      return DETECTION_MS + DEPARTURE_MS;
    case "freeze":
      return Math.min(fault.forMs, DETECTION_MS) + DEPARTURE_MS;
    case "cut":
      return fault.lateMs + DEPARTURE_MS;
    case "hold":
    case "disk-full":
      return fault.forMs + CALM_GAP_MS;
    case "clog":
    case "swizzle":
    case "deaf-in":
    case "mislead-in":
    case "rot-in":
      return fault.forMs + DEPARTURE_MS;
    case "spike":
      // A step is eight messages long at most, one after the other.
      return Math.min(fault.forMs, 8 * fault.extraMs) + CALM_GAP_MS;
    case "partition":
      // Who hears nothing but is heard is not silent: the partition's end is what helps.
      return (fault.way === "in" ? fault.forMs : Math.min(fault.forMs, DETECTION_MS)) + DEPARTURE_MS;
    case "coordinator":
    case "coordinator-in":
      return fault.downMs + REGATHER_MS + DEPARTURE_MS;
    case "corrupt":
      return fault.fetches * DEPARTURE_MS;
    case "wrong-totals":
      return fault.count * (TOTAL_MS + DEPARTURE_MS);
    case "crook":
      return Infinity;
  }
}
