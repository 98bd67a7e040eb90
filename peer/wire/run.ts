// What a run is, as data that both sides agree on: the model, the hyper-parameters, and the plan (view).
// Not a place for behaviour. Names of hyper-parameters follow nanoGPT, names of model fields Llama's usage.

/**
 * llama: RMSNorm, rotary positions, SwiGLU, no biases. gpt2: LayerNorm, learned positions, GELU, a bias with every linear
 * layer but the head.
 */
export const ARCHITECTURE_IDS = ["llama", "gpt2"] as const;
export type ArchitectureId = typeof ARCHITECTURE_IDS[number];

/** Matrices of a layer that may get adapters, by the names that Hugging Face gives them. */
export const LORA_TARGETS = [
  ...["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"] as const,
] as const;
export type LoraTarget = typeof LORA_TARGETS[number];

/** Adapters beside a frozen base: W + (alpha / rank)·B·A (Hu et al. 2021). */
export interface LoraSpec {
  rank: number;
  alpha: number;
  /** In the order of LORA_TARGETS. */
  targets: LoraTarget[];
  /** Hash of the base's tensors (peer/model/lora_base.ts); absent while no base is chosen. */
  base?: string;
}

/** Shape of the model. Maths legend: C = n_embd, H = n_head, T = block_size, V = vocab_size, I = n_inner. */
export interface ModelSpec {
  /** Absent: llama. */
  architecture?: "gpt2";
  vocab_size: number;
  block_size: number;
  n_layer: number;
  n_head: number;
  /** Key/value heads; divides n_head (grouped-query attention). */
  n_kv_head: number;
  n_embd: number;
  /** Width inside the SwiGLU or GELU layer. */
  n_inner: number;
  tie_word_embeddings: boolean;
  rope_theta: number;
  norm_eps: number;
  /** Present: only adapters are trained, and everything else is the base's. */
  lora?: LoraSpec;
}

export type CodecId = "raw32" | "f16s" | "i8b64";
/**
 * How a micro-batch's weight gradients become integers: "int8" rounds them at random to about 8 bits, "raw32" to the
 * nearest of about 30. Both give the same bits for every plan and every history of departures.
 */
export type ReduceId = "int8" | "raw32";

/** Orders of a step's operations that peers can follow; docs/algorithms.md explains each. */
export const SCHEDULE_IDS = [
  ...["dynamic", "gpipe", "1f1b", "interleaved", "breadth-first"] as const,
  ...["chimera", "chimera-doubling", "chimera-halving"] as const,
  ...["zb-h1", "zb-h2", "zb-v", "dualpipe", "2bw"] as const,
] as const;

export type ScheduleId = typeof SCHEDULE_IDS[number];
/** What a stage computes again in its backward instead of keeping: nothing, the attention, or all but a layer's input. */
export type RecomputeId = "none" | "attention" | "block";

/**
 * How WebGPU kernels keep what F leaves to B and W, and the gradients on the way back: in f32 or in halves. Computed with is f32
 * either way, and so are weights, weight gradients, norms' sums, softmax and loss; other engines know f32 only.
 */
export type DtypeId = "f32" | "f16";

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
  /** What cuts the text of a new run: char, gpt2, or the path of a tokenizer.json. A checkpoint brings its own. */
  tokenizer: string;
  /** Field of JSON Lines or column of Parquet that holds the text. */
  column: string;
  /** A tokenizer's vocabulary is filled up to a multiple of this with tokens that never occur. */
  vocab_multiple: number;
  architecture: ArchitectureId;
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
  /** auto: the planner cuts a step's sequences into micro-batches of the size that suits its peers; their product stays. */
  micro_batch: "fixed" | "auto";
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
  /** Micro-batches in one evaluation; with `micro_batch: auto` its sequences stay, whatever their size. */
  eval_iters: number;
  /** Steps between checkpoints on disk. */
  checkpoint_interval: number;
  /** Steps between the snapshots that a loss of all holders of a stage falls back to; 0 = the run chooses. */
  snapshot_interval: number;
  /** Characters of sample text written at each evaluation; 0 = none. */
  sample_chars: number;
  seed: number;
  /** Pipeline stages; 0 = the planner decides. */
  n_stage: number;
  /** Fewest peers that the run starts with. */
  min_peers: number;
  /** A stage with one holder gets a second one that computes nothing: no departure then loses a committed step. */
  shadows: boolean;
  /** Peers of other stages keep shards and parities of each stage's state in their memory. */
  parity: boolean;
  /** auto: at each cut the planner takes the one with which a step is predicted to be shortest; a view names what it took. */
  schedule: ScheduleId | "auto";
  /** Pairs of opposite pipelines of the schedule `chimera`; each peer holds two stages for each. */
  chimera_pairs: number;
  codec_forward: CodecId;
  codec_backward: CodecId;
  /** The planner may give a boundary a finer codec than these, where its links have room for it. */
  codec_per_link: boolean;
  /** What replicas exchange of their weight gradients. */
  reduce: ReduceId;
  /** Activations that are computed again to save memory; auto: as little as the peers' memory allows, stage by stage. */
  recompute: RecomputeId | "auto";
  /** f16: activations take half the memory; the gradient is scaled for it, and steps that overflow are skipped. */
  dtype: DtypeId;
  /** auto: on the GPU where a stage has one holder whose engine can. */
  optimizer: "auto" | "exact";
  /** Rank of the adapters that are trained in place of the model; 0 = the model itself is trained. */
  lora_rank: number;
  /** The adapters' product counts lora_alpha / lora_rank times. */
  lora_alpha: number;
  /** Matrices that get adapters: names of LORA_TARGETS with commas between them. */
  lora_targets: string;
  /** Hash of the model that the adapters belong to; empty until one is chosen. */
  lora_base: string;
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

/** How the tensors between two neighbouring stages travel. */
export interface BoundaryCodecs {
  /** Activations. */
  forward: CodecId;
  /** Their gradients. */
  backward: CodecId;
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
  /** Of this cut, where it may differ from the one that a peer was welcomed with. */
  config?: RunConfig;
  schedule: ScheduleId;
  codecForward: CodecId;
  codecBackward: CodecId;
  /** One per boundary, in pipeline order; the same for the whole cut. Absent: all boundaries have the two above. */
  codecs?: BoundaryCodecs[];
}

/** A boundary tensor as it travels: rows x cols values in one codec, with the tensor's power-of-two exponent. */
export interface Encoded {
  codec: CodecId;
  exponent: number;
  rows: number;
  cols: number;
  payload: Uint8Array;
}
