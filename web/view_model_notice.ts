// The screens that stop the work: what happened, and what the reader can do. Pure text, keyed by error code and
// phase; docs/errors.md lists the codes. A notice without a remedy is a bug.
import type { Invite, TabSnapshot } from "../peer/wire/status.ts";

export type Tone = "good" | "info" | "warn" | "bad";
export interface Notice {
  tone: Tone;
  title: string;
  what: string;
  remedy: string;
  /** Label of the button; null if pressing something cannot help. */
  button: string | null;
}

type Text = Omit<Notice, "what" | "button"> & { button?: string; fallback: string };

const BY_CODE: Record<string, Text> = {
  "no-token": {
    tone: "warn",
    title: "This link is incomplete",
    fallback: "The address has no token: the part after the # sign is missing.",
    remedy:
      "Open the whole link as it was sent to you; some programs cut it at the # sign. {operator} can send it again.",
  },
  "bad-token": {
    tone: "bad",
    title: "This link is not valid",
    fallback: "The coordinator does not know this token. The run may have been started anew.",
    remedy: "Ask {operator} for the current link.",
  },
  "wrong-version": {
    tone: "warn",
    title: "This page is out of date",
    fallback: "The page and the coordinator speak different versions of the protocol.",
    remedy: "Reload the page to get the coordinator's version. If that does not help, tell {operator}.",
    button: "Reload the page",
  },
  "run-full": {
    tone: "info",
    title: "The run has all the computers it can use",
    fallback: "The coordinator takes no more peers at the moment.",
    remedy: "Try again later; a place becomes free when somebody leaves.",
    button: "Try again",
  },
  kicked: {
    tone: "bad",
    title: "This computer was removed from the run",
    fallback: "The coordinator ended this computer's part.",
    remedy: "The others carry on without it. You can join again; if it happens twice, ask {operator} why.",
    button: "Join again",
  },
  banned: {
    tone: "bad",
    title: "This computer is kept out of the run",
    fallback: "The organizer put this computer out and does not let it come back.",
    remedy: "The others carry on without it. If that is a mistake, {operator} can lift it.",
    button: "Try again",
  },
  offline: {
    tone: "warn",
    title: "The coordinator does not answer",
    fallback: "The connection was lost, or the coordinator was stopped.",
    remedy:
      "Check this computer's network and whether {operator} still runs the coordinator, then try again.",
    button: "Try again",
  },
  "device-lost": {
    tone: "bad",
    title: "The graphics device was lost",
    fallback:
      "The driver or the browser took the graphics device away, as after sleep, a driver update or a crash.",
    remedy:
      "Join again. If it happens repeatedly, restart the browser, and close other programs that use much " +
      "graphics memory.",
    button: "Join again",
  },
  "out-of-memory": {
    tone: "bad",
    title: "Not enough graphics memory",
    fallback: "The piece of the model did not fit into this computer's graphics memory.",
    remedy: "Close other tabs and programs that use the graphics processor, then join again.",
    button: "Join again",
  },
  "no-adapter": {
    tone: "warn",
    title: "No graphics adapter available",
    fallback: "The browser knows WebGPU but offers no adapter.",
    remedy:
      "Turn on hardware acceleration in the browser's settings, update the graphics driver, and reload. " +
      "On Linux, Chrome may need “Unsafe WebGPU Support” at chrome://flags.",
    button: "Look again",
  },
  "no-webgpu": {
    tone: "warn",
    title: "This browser has no WebGPU",
    fallback: "The address asks for an engine that needs WebGPU, which this browser does not offer.",
    remedy:
      "Leave “?engine=…” out of the address: the processor then computes. Or open this link in a current Chrome or Edge, in Safari 26 or newer, or in a current Firefox on Windows or " +
      "macOS.",
  },
  insecure: {
    tone: "warn",
    title: "WebGPU needs a secure address",
    fallback: "Browsers offer WebGPU only over https or on localhost, and this page came over plain http.",
    remedy:
      "Leave “?engine=…” out of the address: the processor then computes. Or ask {operator} for an https link. On the coordinator's own computer, use its localhost link.",
  },
  left: {
    tone: "good",
    title: "This computer has left the run",
    fallback: "Nothing runs here any more. Thank you for lending it.",
    remedy: "You can close this tab, or lend the computer again.",
    button: "Lend it again",
  },
  done: {
    tone: "good",
    title: "The run is finished",
    fallback: "The model has seen all its training steps. Thank you for lending this computer.",
    remedy: "Nothing runs here any more; you can close this tab. {operator} has the trained weights.",
  },
  refused: {
    tone: "info",
    title: "Nothing was started",
    fallback: "This computer computes nothing for the run and has sent it nothing.",
    remedy: "You can close this tab. If you change your mind, {operator} will be glad of the help.",
    button: "Read it again",
  },
  withdrawn: {
    tone: "info",
    title: "Your agreement is withdrawn",
    fallback: "This computer has left, and everything that the page had stored in this browser is deleted.",
    remedy: "You can close this tab, or start afresh.",
    button: "Start afresh",
  },
  failed: {
    tone: "bad",
    title: "The run has failed",
    fallback: "The coordinator stopped this run after a failure.",
    remedy: "There is nothing to lend for at the moment. Ask {operator} whether the run will be resumed.",
    button: "Look again",
  },
};

const UNKNOWN: Text = {
  tone: "bad",
  title: "Something went wrong",
  fallback: "The peer stopped without saying why.",
  remedy: "Reload the page to start afresh. If it happens again, tell {operator} what this page says.",
  button: "Reload the page",
};

function noticeOf(code: string, reason: string, operator: string | null): Notice {
  const text = Object.hasOwn(BY_CODE, code) ? BY_CODE[code] ?? UNKNOWN : UNKNOWN;
  return {
    tone: text.tone,
    title: text.title,
    what: reason || text.fallback,
    remedy: withName(text.remedy, operator ?? "the person who sent it"),
    button: text.button ?? null,
  };
}

/** Puts the name in; at the start of a sentence it gets a capital. */
function withName(remedy: string, name: string): string {
  const capital = name.slice(0, 1).toUpperCase() + name.slice(1);
  return remedy.replace(/(\. )?\{operator\}/g, (_, start?: string) => start ? start + capital : name);
}

export function noticeForRefusal(
  refusal: { code: string; message: string },
  operator: string | null,
): Notice {
  return noticeOf(refusal.code, refusal.message, operator);
}

/** For what the page itself finds, such as "no-webgpu". */
export function noticeForCode(code: string, reason: string, operator: string | null): Notice {
  return noticeOf(code, reason, operator);
}

/** Null for the phases in which the peer works or waits. */
export function noticeForPhase(snapshot: TabSnapshot, operator: string | null): Notice | null {
  switch (snapshot.phase) {
    case "device-lost":
    case "kicked":
      return noticeOf(codeOf(snapshot), snapshot.reason, operator);
    case "left":
    case "done":
    case "offline":
    case "wrong-version":
      return noticeOf(snapshot.phase, snapshot.reason, operator);
    default:
      return null;
  }
}

/** The cause, where it has a text of its own: being refused for lack of room is no removal. */
function codeOf({ phase, code = "" }: TabSnapshot): string {
  return Object.hasOwn(BY_CODE, code) ? code : phase;
}

/** Null while the run can use another computer. */
export function noticeForRun(invite: Invite): Notice | null {
  if (invite.state === "finished") {
    return noticeOf("done", "The model has seen all its training steps.", invite.operator);
  }
  return invite.state === "failed" ? noticeOf("failed", "", invite.operator) : null;
}
