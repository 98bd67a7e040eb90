// The size of a run's micro-batches, where the configuration leaves it to the planner: decided at the first cut of the layers and at
// each later one, never by a cut of its own, and recorded as a change of the configuration. Pure; settleSize mutates the turn's
// state. What must stay true: a step keeps its sequences, a step that is done again has the size that it had (unless that no
// longer fits), and what the organizer was shown is what is applied.
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import type { RunConfig, View } from "../../peer/wire/run.ts";
import { placedStep } from "../plan/placed_step.ts";
import { chooseSize, type SizeChoice, type SizeJudgement, sizesOf, withSize } from "../plan/planner_batch.ts";
import type { Infeasible, Plan } from "../plan/planner_types.ts";
import { predictionAt } from "../plan/rebalance.ts";
import { changeNow } from "./changes.ts";
import { requestOf, type RequestOptions } from "./plan_request.ts";
import { plannable } from "./planned_view.ts";
import { planKey, planOfView, preparedFor } from "./planning.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { fixedShareOf, sizedPeer } from "./sized_peer.ts";
import { note, type Turn } from "./turn.ts";
import { planView } from "./view_builder.ts";

/** Of the planner's own changes a run remembers at most so many, since it may go back over all of them; then the size stays. */
export const SIZE_CHANGES_MAX = 64;
/** Peers times the sizes that are planned: a plan takes the longer the more peers it has, and nothing is committed meanwhile. */
const PEERS_PLANNED_MAX = 24;
/** So many are planned however many peers there are: the present one, and the formula's or a neighbour. */
const SIZES_TRIED_MIN = 2;

/** A size with what the planner makes of it. */
export interface Sized extends SizeJudgement {
  /** Null where the planner does not place the stages, or nothing fits. */
  answer: Plan | Infeasible | null;
}

export type SizedChoice = SizeChoice<Sized> & { peers: PeerRecord[] };

/**
 * The size that suits these peers, with the plan that goes with it; null where the run has its size from its configuration, or
 * no size is better than none. `judge` says what a configuration comes to with peers whose times are told for it.
 */
export function weighSizes(
  s: RunCoreState,
  peers: readonly PeerRecord[],
  judge: (of: RequestOptions) => Sized,
): SizedChoice | null {
  const { config } = s;
  if (config.micro_batch !== "auto") return null;
  const at = (size: number) => peers.map((peer) => sizedPeer(peer, config.batch_size, size));
  const { choice } = chooseSize(
    config,
    (sized) => judge({ spec: s.spec, config: sized, peers: at(sized.batch_size) }),
    { stay: mustStay(s, peers), tried: Math.max(SIZES_TRIED_MIN, PEERS_PLANNED_MAX / peers.length) },
  );
  return choice === null ? null : { ...choice, peers: at(choice.config.batch_size) };
}

/** Steps are done again, nobody knows what another size would take, or it has changed too often. */
function mustStay(s: RunCoreState, peers: readonly PeerRecord[]): boolean {
  return s.committed < s.planning.furthest || peers.some((peer) => fixedShareOf(peer) === undefined) ||
    s.changes.filter(({ planned }) => planned).length >= SIZE_CHANGES_MAX;
}

/** Decides the size with which the next cut begins, and leaves its plan for it. Called with no view, and peers that may be given work. */
export function settleSize(turn: Turn, peers: readonly PeerRecord[]): void {
  const { s } = turn;
  if (s.config.micro_batch !== "auto" || adoptShown(turn, peers)) return;
  const prepared = preparedFor(s, plannable(peers))?.answer;
  const { batch_size: now } = s.config;
  const choice = weighSizes(
    s,
    peers,
    (of) => judgeView(of, of.config.batch_size === now ? prepared : undefined),
  );
  if (choice === null) return;
  adoptSize(turn, choice);
  const { answer } = choice.judged;
  if (answer === null || answer === prepared) return;
  const said = {
    ...answer,
    ...(answer.kind === "plan" ? { reasons: [choice.sentence, ...answer.reasons] } : {}),
  };
  s.planning.prepared = { key: planKey(s, plannable(peers)), answer: said, why: choice.sentence };
}

/** What the organizer was shown, if the peers are still those. */
function adoptShown(turn: Turn, peers: readonly PeerRecord[]): boolean {
  const { s } = turn;
  const { prepared } = s.planning;
  if (prepared?.size === undefined || !sizesOf(s.config).includes(prepared.size)) return false;
  const config = withSize(s.config, prepared.size);
  const sized = peers.map((peer) => sizedPeer(peer, s.config.batch_size, config.batch_size));
  if (prepared.key !== planKey({ config }, plannable(sized))) return false;
  adoptSize(turn, { config, sentence: prepared.why });
  return true;
}

function adoptSize(turn: Turn, { config, sentence }: { config: RunConfig; sentence: string }): void {
  const { batch_size, gradient_accumulation_steps, eval_iters } = config;
  if (batch_size === turn.s.config.batch_size) return;
  changeNow(turn, { batch_size, gradient_accumulation_steps, eval_iters });
  note(turn, "plan", `micro-batches have another size from step ${turn.s.committed} on. ${sentence}`);
}

/** What a configuration comes to with these peers, whoever places its stages. */
function judgeView(of: RequestOptions, prepared?: Plan | Infeasible): Sized {
  const { config } = of;
  const planned = planView({ gen: 0, baseStep: 0, ...of, peers: [...of.peers], prepared });
  if (planned.view === null) return impossible(planned.missing);
  const { view, plan } = planned;
  if (isPlaced(config.schedule) && view.schedule !== config.schedule) {
    return impossible(
      `${config.schedule} does not take ${config.gradient_accumulation_steps} micro-batches here`,
    );
  }
  if (plan !== undefined) return judgePlan(plan);
  const seconds = secondsOf(of, view);
  return seconds === null
    ? impossible("nobody can say what a step would take")
    : { seconds, reason: "", suggestion: null, answer: null };
}

export function judgePlan(answer: Plan | Infeasible): Sized {
  return answer.kind === "infeasible" ? { ...impossible(answer.reason), answer } : {
    ...{ seconds: answer.seconds, reason: "", answer },
    suggestion: answer.batchSuggestion?.batchSize ?? null,
  };
}

function impossible(reason: string): Sized {
  return { seconds: null, reason, suggestion: null, answer: null };
}

function secondsOf(of: RequestOptions, view: View): number | null {
  const request = requestOf(of);
  if (isPlaced(view.schedule)) return placedStep(request, view)?.seconds ?? null;
  const open = { ...request, memory: () => 0, hiddenAlone: true };
  return predictionAt(open, planOfView(view))?.seconds ?? null;
}
