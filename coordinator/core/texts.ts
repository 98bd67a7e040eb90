// Texts that the stages of a live run write together: who writes with which copy of the weights, which rows go out when, and what
// follows when one of the peers goes. Pure; mutates the turn's state. What must stay true: nothing here changes a view, a round or
// a commit; all stages of an edition have the weights of one step; every text ends, within TEXT_MS.
import { readAnew, readOn, windowOf } from "../../peer/model/text_window.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { ErrorCode } from "../../peer/wire/errors.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import { TEXTS_PER_EDITION, type WriteOrder } from "../../peer/wire/texts.ts";
import { currentHolders } from "./holders.ts";
import type { RunCoreState } from "./run_state.ts";
import type { Edition, Seat, Text, TextTold, TextWish } from "./text_state.ts";
import { note, type Turn } from "./turn.ts";

/** Texts at a time; whoever serves them has refused more before. */
export const TEXTS_MAX = 24;
/** Longest that one text may take, its waiting included; else a few requests hold up all others for hours. */
export const TEXT_MS = 300_000;
/** Peers copy weights between two steps, and may load a view before. */
export const OPEN_MS = 60_000;
/** An edition in which one text has not come on for so long has lost a message somewhere. */
export const STALL_MS = 60_000;
/** So long nobody may be found who could write; after it the text ends with the reason. */
export const WAIT_MS = 60_000;
/** New texts join an edition of this age at most, so that under steady demand the newest weights write now and then. */
export const EDITION_MS = 60_000;
/** Editions in a row without a token after which whoever waits is told why. */
const FAILURES_MAX = 5;
const AGAIN_MS = 500;
/** Who has failed is asked last for so long. */
const AVOID_MS = 60_000;
/** Pieces of one text under way at a time, beyond which a slow stage's queue would only grow. */
const PIECES_MAX = 8;

type Of<T extends PeerMessage["type"]> = Extract<PeerMessage, { type: T }>;

/** Somebody wants a text. */
export function askText(turn: Turn, id: number, wish: TextWish): void {
  const { s, now } = turn;
  const { writing, waiting } = s.texts;
  if (writing.length + waiting.length >= TEXTS_MAX) {
    return tell(turn, id, {
      what: "failed",
      code: "usage",
      reason: `${TEXTS_MAX} texts are waiting already`,
    });
  }
  const fresh = { written: [], window: [], pieces: [], underWay: 0, restarts: 0 };
  waiting.push({ id, slot: -1, wish, ...fresh, at: now, movedAt: now });
}

/** Whoever wanted it has enough, or is gone. */
export function cancelText(turn: Turn, id: number): void {
  const { texts } = turn.s;
  texts.waiting = texts.waiting.filter((text) => text.id !== id);
  const text = texts.writing.find((it) => it.id === id);
  if (text !== undefined) leave(turn, text);
}

/** A peer has copied its stage's weights. */
export function recordWriteOpen({ s }: Turn, peer: string, { edition, stage }: Of<"write-open">): void {
  const seat = seatOf(s, edition, stage);
  if (seat?.peer === peer) seat.open = true;
}

export function recordWriteFailed(turn: Turn, peer: string, message: Of<"write-failed">): void {
  const { edition, stage, reason } = message;
  if (seatOf(turn.s, edition, stage)?.peer !== peer) return;
  avoid(turn, stage, peer);
  closeEdition(turn, `${peer}: ${reason}`);
}

/** The last stage has read a piece, and drawn a token if that was wanted. */
export function recordWrote(turn: Turn, peer: string, message: Of<"wrote">): void {
  const { texts, spec } = turn.s;
  const text = texts.writing.find((it) => it.id === message.text);
  if (texts.edition?.id !== message.edition || lastOf(texts.edition).peer !== peer || !text?.underWay) return;
  text.underWay--;
  text.movedAt = turn.now;
  const { token } = message;
  const drawn = text.underWay === 0 && text.pieces.length === 0;
  if (!drawn) return sendPieces(turn, text);
  // Whoever draws none, or one that the model has not, does not have this model.
  if (token === undefined || token >= spec.vocab_size) return closeEdition(turn, `${peer}: drew no token`);
  texts.failures = 0;
  texts.tokensTotal++;
  text.written.push(token);
  tell(turn, text.id, { what: "token", token });
  if (text.written.length >= text.wish.count) {
    tell(turn, text.id, { what: "end" });
    return leave(turn, text);
  }
  text.pieces = readOn(text.window, token, spec.block_size);
  sendPieces(turn, text);
}

/** After every event: goes on with whatever can go on. */
export function stepTexts(turn: Turn): void {
  const { texts } = turn.s;
  if (texts.writing.length + texts.waiting.length === 0 && texts.edition === null) return;
  judgeEdition(turn);
  endLate(turn);
  if (texts.edition === null) beginEdition(turn);
  else if (texts.writing.length + texts.waiting.length === 0) closeEdition(turn, null);
  else admitTexts(turn);
}

/** Something of it is gone, or has not been heard of for too long. */
function judgeEdition(turn: Turn): void {
  const { s, now } = turn;
  const { edition, writing } = s.texts;
  if (edition === null) return;
  for (const { peer } of edition.seats) {
    const record = s.peers[peer];
    if (record === undefined) return closeEdition(turn, `${peer} is gone`);
    if (record.paused) return closeEdition(turn, `${peer} is paused`);
  }
  const silent = edition.seats.find((seat) => !seat.open);
  if (silent !== undefined && now - edition.at > OPEN_MS) {
    avoid(turn, silent.stage, silent.peer);
    return closeEdition(turn, `${silent.peer} has not copied its stage in ${OPEN_MS / 1000} s`);
  }
  if (writing.some((text) => now - text.movedAt > STALL_MS)) {
    closeEdition(turn, `no token came in ${STALL_MS / 1000} s`);
  }
}

/** Texts whose time is over. */
function endLate(turn: Turn): void {
  const { s, now } = turn;
  const { writing, waiting, failures, problem } = s.texts;
  for (const text of [...writing, ...waiting]) {
    if (now - text.at <= TEXT_MS) continue;
    fail(turn, text, {
      code: "usage",
      reason: `it was not done after ${TEXT_MS / 1000} s; ask for fewer tokens`,
    });
  }
  const over = s.status === "finished" || s.status === "failed";
  for (const text of [...s.texts.waiting]) {
    const code = "no-writers";
    if (over) fail(turn, text, { code, reason: "the run is over; its last checkpoint writes texts" });
    else if (failures >= FAILURES_MAX) fail(turn, text, { code, reason: problem });
    else if (s.texts.edition === null && now - text.movedAt > WAIT_MS) {
      fail(turn, text, { code, reason: problem || "no peers could be found that write it" });
    }
  }
  if (s.texts.waiting.length === 0 && s.texts.edition === null) {
    Object.assign(s.texts, { failures: 0, againAt: 0 });
  }
}

function fail(turn: Turn, text: Text, why: { code: ErrorCode; reason: string }): void {
  tell(turn, text.id, { what: "failed", ...why });
  cancelText(turn, text.id);
}

/** One holder of each stage, all with the weights of the newest committed step. */
function beginEdition(turn: Turn): void {
  const { s, now } = turn;
  const { texts } = s;
  if (texts.waiting.length === 0 || now < texts.againAt || s.view === null) return;
  const seats: Seat[] = [];
  for (const stage of s.view.stages) {
    const peer = writerOf(turn, stage, seats);
    if (peer === null) {
      texts.problem = `stage ${stage.index + 1} has no computer that could write now`;
      return;
    }
    const { index, firstLayer, endLayer } = stage;
    seats.push({ stage: index, peer, firstLayer, endLayer, open: false });
  }
  // Peers may still have copies for a coordinator that was here before; time makes numbers different from its.
  const id = texts.nextId = Math.max(texts.nextId + 1, Math.floor(now) % 2 ** 32);
  texts.edition = { id, step: s.committed, seats, at: now };
  seats.forEach((seat, i) => {
    const { stage, firstLayer, endLayer } = seat;
    const ends = { from: seats[i - 1]?.peer ?? null, to: seats[i + 1]?.peer ?? null };
    const order = { order: "open" as const, edition: id, step: s.committed, stage, firstLayer, endLayer };
    send(turn, seat.peer, { ...order, ...ends });
  });
  const who = seats.map(({ peer, stage }) => `stage ${stage + 1} on ${peer}`).join(", ");
  note(turn, "text", `texts are written with step ${s.committed}: ${who}`);
}

/** A holder that has everything committed, and of those the one that has least to do. */
function writerOf(turn: Turn, stage: StagePlan, seats: readonly Seat[]): string | null {
  const { s, now } = turn;
  const able = currentHolders(s, stage).filter(({ peer }) => {
    const record = s.peers[peer]!;
    return record.writes === true && !record.paused && !record.leaving;
  });
  const cost = ({ peer, microBatches }: StagePlan["replicas"][number]) => [
    now - (s.texts.avoided[`${stage.index}/${peer}`] ?? -Infinity) < AVOID_MS ? 1 : 0,
    seats.filter((seat) => seat.peer === peer).length,
    microBatches.length,
  ];
  const [best] = able.map((it) => ({ peer: it.peer, cost: cost(it) })).sort((a, b) => byCost(a.cost, b.cost));
  return best?.peer ?? null;
}

/** Others come first for a while; who was avoided longer ago is forgotten. */
function avoid({ s, now }: Turn, stage: number, peer: string): void {
  const recent = Object.entries(s.texts.avoided).filter(([, at]) => now - at < AVOID_MS);
  s.texts.avoided = { ...Object.fromEntries(recent), [`${stage}/${peer}`]: now };
}

function byCost(a: readonly number[], b: readonly number[]): number {
  const at = a.findIndex((value, i) => value !== b[i]);
  return at < 0 ? 0 : a[at]! - b[at]!;
}

/** Whoever waits joins, as long as there is room and the copy is not too old. */
function admitTexts(turn: Turn): void {
  const { s, now } = turn;
  const { edition, writing, waiting } = s.texts;
  if (edition === null || !edition.seats.every(({ open }) => open)) return;
  const fresh = writing.length === 0 || now - edition.at < EDITION_MS;
  while (fresh && writing.length < TEXTS_PER_EDITION && waiting.length > 0) {
    const text = waiting.shift()!;
    while (text.slot < 0 || writing.some(({ slot }) => slot === text.slot)) text.slot++;
    writing.push(text);
    startText(turn, edition, text);
  }
}

/** From the prompt and what is written by now. */
function startText(turn: Turn, edition: Edition, text: Text): void {
  const { block_size: T } = turn.s.spec;
  const { prompt, count: _, ...draws } = text.wish;
  const whole = [...prompt, ...text.written];
  text.pieces = [...readAnew(text.window, windowOf(whole, T)), ...readOn(text.window, whole.at(-1)!, T)];
  text.underWay = 0;
  text.movedAt = turn.now;
  tell(turn, text.id, { what: "begun", step: edition.step, restarts: text.restarts });
  const about = { edition: edition.id, text: text.id, slot: text.slot, drawn: text.written.length };
  send(turn, lastOf(edition).peer, { order: "text", ...about, ...draws });
  sendPieces(turn, text);
}

/** As many as keep all stages busy. */
function sendPieces(turn: Turn, text: Text): void {
  const { edition } = turn.s.texts;
  if (edition === null) return;
  const most = Math.min(edition.seats.length + 1, PIECES_MAX);
  while (text.underWay < most && text.pieces.length > 0) {
    const { position, tokens } = text.pieces.shift()!;
    const draw = text.pieces.length === 0;
    text.underWay++;
    const about = { edition: edition.id, text: text.id, slot: text.slot };
    send(turn, edition.seats[0]!.peer, { order: "rows", ...about, position, tokens, draw });
  }
}

/** The text is over, and the peers need nothing of it any more. */
function leave(turn: Turn, text: Text): void {
  const { texts } = turn.s;
  texts.writing = texts.writing.filter((it) => it !== text);
  const { edition } = texts;
  if (edition === null) return;
  for (const peer of peersOf(edition)) {
    send(turn, peer, { order: "drop", edition: edition.id, text: text.id });
  }
}

/** @param why What ended it, so that its texts have to begin anew; null: nobody needs it any more. */
function closeEdition(turn: Turn, why: string | null): void {
  const { texts, peers } = turn.s;
  const { edition } = texts;
  if (edition === null) return;
  for (const peer of peersOf(edition)) {
    if (peers[peer] !== undefined) send(turn, peer, { order: "close", edition: edition.id });
  }
  const begun = texts.writing.splice(0);
  texts.restartsTotal += begun.length;
  for (const text of begun) Object.assign(text, { restarts: text.restarts + 1, slot: -1 });
  // Each waits anew for the next one.
  for (const text of texts.waiting = [...begun, ...texts.waiting]) text.movedAt = turn.now;
  texts.edition = null;
  if (why === null) return;
  texts.failures++;
  texts.problem = why;
  texts.againAt = turn.now + AGAIN_MS * (texts.failures - 1);
  note(turn, "text", `texts begin anew: ${why}`);
}

function seatOf(s: RunCoreState, edition: number, stage: number): Seat | undefined {
  if (s.texts.edition?.id !== edition) return undefined;
  return s.texts.edition.seats.find((seat) => seat.stage === stage);
}

function lastOf(edition: Edition): Seat {
  return edition.seats.at(-1)!;
}

function peersOf(edition: Edition): Set<string> {
  return new Set(edition.seats.map(({ peer }) => peer));
}

function send(turn: Turn, peer: string, order: WriteOrder): void {
  turn.out.push({ do: "send", peer, message: { type: "write", order } });
}

function tell(turn: Turn, id: number, told: TextTold): void {
  turn.out.push({ do: "text", id, told });
}
