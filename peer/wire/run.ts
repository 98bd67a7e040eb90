// What a run is, as data that both sides agree on: the model, the hyper-parameters, and the plan (view).
// Not a place for behaviour. Names of hyper-parameters follow nanoGPT, names of model fields Llama's usage.

/** Shape of the model. Maths legend: C = n_embd, H = n_head, T = block_size, V = vocab_size, I = n_inner. */
export interface ModelSpec {
  vocab_size: number;
  block_size: number;
  n_layer: number;
  n_head: number;
  /** Key/value heads; divides n_head (grouped-query attention). */
  n_kv_head: number;
  n_embd: number;
  /** Width of the SwiGLU inner layer. */
  n_inner: number;
  tie_word_embeddings: boolean;
  rope_theta: number;
  norm_eps: number;
}

export type CodecId = "raw32" | "f16s" | "i8b64";
/**
 * How a micro-batch's weight gradients become integers: "int8" rounds them at random to about 8 bits, "raw32" to the
 * nearest of about 30. Both give the same bits for every plan and every history of departures.
 */
export type ReduceId = "int8" | "raw32";
export type ScheduleId = "gpipe" | "1f1b" | "dynamic";
/** What a stage computes again in its backward instead of keeping: nothing, the attention, or all but a layer's input. */
export type RecomputeId = "none" | "attention" | "block";

/**
 * Where a stage's gradients are summed and its step is made. exact: in integers on the CPU, the same bits for every holder. gpu:
 * in f32 where the gradients are, for a stage that has one holder.
 */
export type OptimizerId = "exact" | "gpu";

export interface IceServer {
  urls: string | string[];
  username?: string;
  credential?: string;
}

/** Flat configuration of a run; validated by peer/model/config.ts. */
export interface RunConfig {
  dataset: string;
  block_size: number;
  n_layer: number;
  n_head: number;
  n_kv_head: number;
  n_embd: number;
  n_inner: number;
  tie_word_embeddings: boolean;
  rope_theta: number;
  norm_eps: number;
  dropout: number;
  /** Sequences in one micro-batch. */
  batch_size: number;
  /** Micro-batches in one step (N). */
  gradient_accumulation_steps: number;
  learning_rate: number;
  min_lr: number;
  max_iters: number;
  warmup_iters: number;
  lr_decay_iters: number;
  weight_decay: number;
  beta1: number;
  beta2: number;
  grad_clip: number;
  eval_interval: number;
  /** Micro-batches in one evaluation. */
  eval_iters: number;
  /** Steps between checkpoints on disk. */
  checkpoint_interval: number;
  /** Steps between the snapshots that a loss of all holders of a stage falls back to; 0 = the run chooses. */
  snapshot_interval: number;
  /** Characters of sample text written at each evaluation; 0 = none. */
  sample_chars: number;
  seed: number;
  /** Pipeline stages; 0 = as many as there are peers, at most n_layer. */
  n_stage: number;
  /** Fewest peers that the run starts with. */
  min_peers: number;
  /** A stage with one holder gets a second one that computes nothing: no departure then loses a committed step. */
  shadows: boolean;
  /** Peers of other stages keep shards and parities of each stage's state in their memory. */
  parity: boolean;
  schedule: ScheduleId;
  codec_forward: CodecId;
  codec_backward: CodecId;
  /** What replicas exchange of their weight gradients. */
  reduce: ReduceId;
  /** Activations that are computed again to save memory; auto: as little as the peers' memory allows, stage by stage. */
  recompute: RecomputeId | "auto";
  /** auto: on the GPU where a stage has one holder whose engine can. */
  optimizer: "auto" | "exact";
  iceServers: IceServer[];
}

/** A contiguous run of layers; the embedding sits in the first stage, final norm and head in the last. */
export interface StageSpec {
  index: number;
  /** First layer and one past the last. */
  firstLayer: number;
  endLayer: number;
  embed: boolean;
  head: boolean;
}

export interface ReplicaPlan {
  peer: string;
  /** Micro-batches of each step that this replica computes (ascending); none = a shadow, which only keeps the state. */
  microBatches: number[];
  /** It is still fetching the stage's state: it does not count as a holder and gets no micro-batch. */
  learning?: boolean;
}

export interface StagePlan extends StageSpec {
  replicas: ReplicaPlan[];
  /** Forwards allowed in flight (F started, B not done) per replica; also the number of activation slots. */
  inflight: number;
  /** Absent: none. */
  recompute?: RecomputeId;
  /** gpu only while one peer holds the stage: a further holder ends it, for the rest of the cut. Absent: exact. */
  optimizer?: OptimizerId;
}

/** Who does what, from `baseStep` on. Peers never plan; they execute the view of the newest generation. */
export interface View {
  gen: number;
  /**
   * Generation with which this cut of the layers began. A view with the same cut as the one before amends it: states,
   * engines and the open step go on, only who does what has changed.
   */
  cut: number;
  /** Committed steps contained in the state that every holder starts this view with. */
  baseStep: number;
  stages: StagePlan[];
  schedule: ScheduleId;
  codecForward: CodecId;
  codecBackward: CodecId;
}

/** A boundary tensor as it travels: rows x cols values in one codec, with the tensor's power-of-two exponent. */
export interface Encoded {
  codec: CodecId;
  exponent: number;
  rows: number;
  cols: number;
  payload: Uint8Array;
}
