// What a coordinator of several runs and its page say to one another: the list of runs, the wish for a new one, what a
// configuration would take. Types and limits only; coordinator/http/hub_routes.ts checks what arrives.
import type { RunState } from "./status.ts";
import type { RunConfig } from "./run.ts";

/** Shown in a list and in a link; longer names are sentences. */
export const RUN_NAME_CHARS_MAX = 80;
/** Memory that somebody may say a peer offers, in bytes: from a phone's tab to a server. */
export const OFFER_BYTES_MIN = 16e6;
export const OFFER_BYTES_MAX = 1e12;
/** Speed that somebody may suppose a peer has, in billions of operations a second. */
export const GFLOPS_MIN = 0.1;
export const GFLOPS_MAX = 1e6;

/**
 * `open`: it can be joined. `closed`: nobody opened it since the coordinator started, or it ended. `archived`: put away, with its
 * folder kept. `broken`: it could not be opened, or it failed while others went on.
 */
export type RunPlace = "open" | "closed" | "archived" | "broken";

/** A run in GET /api/hub/runs. Without the organizer's token only what is open and listed, and no admin link. */
export interface HubRun {
  id: string;
  name: string;
  operator: string;
  place: RunPlace;
  /** What is being done with it right now, such as "archiving"; empty: nothing. */
  busy: string;
  /** Of an open run; null otherwise. */
  state: RunState | null;
  /** Why it stands as it does, one sentence; may be empty. */
  reason: string;
  step: number;
  maxIters: number;
  /** Computers in it. */
  peers: number;
  params: number;
  trainLoss: number | null;
  valLoss: number | null;
  /** What people call its text. */
  dataset: string;
  /** Anybody who opens the page sees it and may join. */
  listed: boolean;
  /** Whoever has its join link may write text with it, too. */
  publicText: boolean;
  /** ms since 1970. */
  createdAt: number;
  joinLink: string | null;
  adminLink: string | null;
}

export interface HubRuns {
  admin: boolean;
  runs: HubRun[];
}

/** Configuration keys by name, as a form or a script gives them; the coordinator judges. */
export type ConfigWish = Partial<Record<keyof RunConfig, unknown>>;

/** POST /api/hub/runs. */
export interface RunWish {
  name: string;
  operator?: string;
  listed?: boolean;
  publicText?: boolean;
  config: ConfigWish;
  /** A run whose newest checkpoint's weights the new one begins with, at step 0 and with fresh moments. */
  weightsOf?: string;
}

/** A text that a run may learn. */
export interface DatasetChoice {
  /** Value of the configuration key `dataset`. */
  dataset: string;
  name: string;
  /** How it is cut into tokens, in words. */
  tokenizer: string;
  tokens: number;
  vocabulary: number;
}

/** What the computers in this coordinator's runs have measured: the median of each. */
export interface MeasuredOffer {
  peers: number;
  /** Billions of operations a second. */
  gflops: number;
  offerBytes: number;
}

/** GET /api/hub/form: what a form for a new run begins with. */
export interface RunForm {
  datasets: DatasetChoice[];
  /** What a key is if it is left out. */
  defaults: RunConfig;
  /** By key: the values it may have, where these are few. */
  choices: Readonly<Record<string, readonly string[]>>;
  /** Null while nobody is connected. */
  measured: MeasuredOffer | null;
}

/** POST /api/hub/runs/ID/text: what a run like it says of its text. */
export type RunText = Pick<RunConfig, "dataset" | "tokenizer" | "column">;

/** POST /api/hub/estimate. */
export interface EstimateWish {
  config: ConfigWish;
  /** Memory that each peer offers, bytes. */
  offerBytes: number;
  /** Speed that a peer is supposed to have. */
  gflops: number;
}

export interface EstimatedStage {
  firstLayer: number;
  endLayer: number;
  /** Most that one holder allocates for it. */
  bytes: number;
  peers: number;
}

export interface Estimate {
  params: number;
  /** Of one training step, over all micro-batches. */
  tokensPerStep: number;
  /** How often the training text is read in all. */
  epochs: number;
  /** What a peer allocates that holds the whole model, with one micro-batch under way. */
  wholeBytes: number;
  /** Fewest peers of the offer that can hold the model; null: no number of them can. */
  peersNeeded: number | null;
  /** Why no number of peers is enough; empty otherwise. */
  reason: string;
  /** Peers that the rest is reckoned with: those needed, or `min_peers` if that is more. */
  peers: number;
  /** In pipeline order; empty if it does not fit. */
  stages: EstimatedStage[];
  /** Predicted by the planner; null if it does not fit. */
  stepSeconds: number | null;
  totalSeconds: number | null;
  /** One checkpoint on the coordinator's disk. */
  checkpointBytes: number;
}

/** A value that cannot be, by the field it is about; an empty field: the whole. */
export interface FieldError {
  field: string;
  message: string;
}

export interface EstimateAnswer {
  errors: FieldError[];
  /** Null while there are errors. */
  estimate: Estimate | null;
}
