// Plausible data for the fixtures: one run of four stages, as the coordinator and a tab would report it.
// Pure and fixed, so that two screenshots of one state are equal.
import type { RunConfig, StagePlan } from "../peer/wire/run.ts";
import type {
  EventLine,
  Invite,
  LossPoint,
  PeerStatus,
  RunStatus,
  TabSnapshot,
} from "../peer/wire/status.ts";

import { noDepartures, safetyOf } from "./fixtures_safety.ts";

export const config: RunConfig = {
  dataset: "moby-dick",
  tokenizer: "char",
  column: "text",
  vocab_multiple: 1,
  architecture: "llama",
  block_size: 128,
  n_layer: 8,
  n_head: 8,
  n_kv_head: 4,
  n_embd: 256,
  n_inner: 704,
  tie_word_embeddings: true,
  rope_theta: 10000,
  norm_eps: 1e-5,
  dropout: 0,
  batch_size: 8,
  gradient_accumulation_steps: 16,
  micro_batch: "fixed",
  learning_rate: 6e-4,
  min_lr: 6e-5,
  max_iters: 2000,
  warmup_iters: 100,
  lr_decay_iters: 2000,
  weight_decay: 0.1,
  beta1: 0.9,
  beta2: 0.95,
  grad_clip: 1,
  eval_interval: 50,
  eval_iters: 8,
  checkpoint_interval: 100,
  snapshot_interval: 1,
  shadows: true,
  parity: true,
  sample_chars: 400,
  seed: 1337,
  n_stage: 4,
  min_peers: 4,
  schedule: "dynamic",
  chimera_pairs: 1,
  dtype: "f32",
  codec_forward: "i8b64",
  codec_backward: "i8b64",
  codec_per_link: false,
  lora_rank: 0,
  lora_alpha: 16,
  lora_targets: "q_proj,v_proj",
  lora_base: "",
  reduce: "int8",
  recompute: "auto",
  optimizer: "exact",
  iceServers: [],
};

/** A falling curve with a small, fixed unevenness. */
export function losses(steps: number): LossPoint[] {
  return Array.from({ length: steps }, function point(_, index) {
    const step = index + 1;
    const base = 1.42 + 2.95 * Math.exp(-step / 70);
    const train = base + 0.05 * Math.sin(step * 1.7) + 0.03 * Math.sin(step * 0.37);
    return step % config.eval_interval === 0 ? { step, train, val: base + 0.07 } : { step, train };
  });
}

export const invite: Invite = {
  runName: "Moby-Dick, evening class",
  operator: "the physics lab",
  state: "training",
  params: 6_360_000,
  dataset: "Moby-Dick",
  peers: 5,
  memoryBytes: 212_000_000,
  bytesPerStep: 3_400_000,
  version: 1,
};

const sampleText =
  "The sea was of a pale and steady light, and the men stood to the boats,\nand the whale was in the " +
  "wind of the ship; “There she goes!” cried the mate,\nand all the deck was alive with the sound of the line running.";

export const snapshot: TabSnapshot = {
  phase: "training",
  reason: "",
  adapter: "Apple M2",
  engine: "wgsl on Apple M2 (metal)",
  stage: 1,
  stageCount: 4,
  layers: [2, 4],
  params: 1_590_528,
  memoryBytes: 198_400_000,
  step: 341,
  maxIters: 2000,
  ownStepMs: 182,
  groupStepMs: 644,
  tokens: 5_586_944,
  bytesUp: 412_600_000,
  bytesDown: 398_200_000,
  links: { direct: 3, relayed: 1 },
  losses: losses(341),
  sample: { step: 300, text: sampleText },
  alone: [],
};

function stage(index: number, replicas: StagePlan["replicas"]): StagePlan {
  return {
    index,
    firstLayer: index * 2,
    endLayer: index * 2 + 2,
    embed: index === 0,
    head: index === 3,
    replicas,
    inflight: 4 - index,
  };
}

const all = Array.from({ length: 16 }, (_, index) => index);
const even = all.filter((index) => index % 2 === 0);
const odd = all.filter((index) => index % 2 === 1);

const replicas: StagePlan["replicas"][] = [
  [{ peer: "tab-4f21", microBatches: even }, { peer: "deno-81c0", microBatches: odd }],
  [{ peer: "tab-09ae", microBatches: all }],
  [{ peer: "tab-c377", microBatches: all }],
  [{ peer: "deno-1d5b", microBatches: all }],
];
const shadows = [null, "deno-1d5b", "tab-4f21", "tab-09ae"];

/** Three stages with one holder each. */
export const bareStages: StagePlan[] = replicas.map((own, index) => stage(index, own));

/** Every stage with a second holder. */
export const stages: StagePlan[] = replicas.map((own, index) => {
  const shadow = shadows[index];
  return stage(index, shadow ? [...own, { peer: shadow, microBatches: [] }] : own);
});

function peer(id: string, part: Partial<PeerStatus>): PeerStatus {
  const tab = id.startsWith("tab");
  return {
    id,
    runtime: tab ? "tab" : "deno",
    adapter: "Apple M2",
    engine: tab ? "wgsl (browser)" : "wgsl (dawn)",
    role: "spare",
    stage: null,
    blockMs: 11.4,
    stepMs: 182,
    bytesUp: 412_600_000,
    bytesDown: 398_200_000,
    links: { direct: 4, relayed: 0 },
    hidden: false,
    silentMs: 240,
    retainedBytes: 1_180_000,
    suspect: 0,
    stepsAtRisk: 0,
    ...part,
  };
}

export const peers: PeerStatus[] = [
  peer("tab-4f21", {
    role: "stage 1, layers 1-2; shadow of stage 3",
    stage: 0,
    adapter: "Intel Iris Xe",
    blockMs: 21.8,
    stepMs: 318,
  }),
  peer("deno-81c0", {
    role: "stage 1, layers 1-2",
    stage: 0,
    adapter: "llvmpipe (LLVM 15, 256 bits)",
    blockMs: 64.2,
  }),
  peer("tab-09ae", {
    role: "stage 2, layers 3-4; shadow of stage 4",
    stage: 1,
    links: { direct: 3, relayed: 1 },
  }),
  peer("tab-c377", {
    role: "stage 3, layers 5-6",
    stage: 2,
    adapter: "Adreno 740",
    hidden: true,
    stepMs: 402,
  }),
  peer("deno-1d5b", {
    role: "stage 4, layers 7-8; shadow of stage 2",
    stage: 3,
    adapter: "NVIDIA GeForce RTX 3060",
    silentMs: 4200,
  }),
  peer("tab-77e2", {
    stepMs: 0,
    blockMs: 0,
    bytesUp: 18_200,
    bytesDown: 204_000,
    retainedBytes: 0,
    adapter: "AMD Radeon 780M",
  }),
];

/** 2026-03-14 09:26:53 UTC; any fixed time would do. */
const STARTED_MS = Date.UTC(2026, 2, 14, 9, 26, 53);

export const events: EventLine[] = [
  [0, "state", "waiting: 0 of 4 peers"],
  [4200, "peer", "tab-4f21 joined (Intel Iris Xe, 21.8 ms per block)"],
  [6100, "peer", "deno-1d5b joined (NVIDIA GeForce RTX 3060, 3.1 ms per block)"],
  [30_400, "state", "training: 4 stages on 5 peers"],
  [94_000, "checkpoint", "step 100 written, 25.4 MB"],
  [120_300, "peer", "tab-a001 vanished in step 142; stage 2 goes to tab-09ae, no step lost"],
  [160_000, "checkpoint", "step 300 written, 25.4 MB"],
].map(([afterMs, kind, text], index) => ({
  seq: index + 1,
  atMs: STARTED_MS + Number(afterMs),
  kind: String(kind),
  text: String(text),
}));

export const status: RunStatus = {
  state: "training",
  reason: "Every stage has its computers.",
  runName: invite.runName,
  operator: invite.operator,
  gen: 7,
  step: 341,
  maxIters: 2000,
  trainLoss: 1.507,
  valLoss: 1.531,
  lr: 5.82e-4,
  gradNorm: 0.7312,
  tokensPerS: 25_440,
  tokensTotal: 5_586_944,
  params: invite.params,
  losses: losses(341),
  stages,
  safety: safetyOf(stages),
  peers,
  events,
  checkpoints: [100, 200, 300].map((step) => ({
    step,
    name: `step-${step}`,
    bytes: 25_440_000,
    valLoss: step === 100 ? null : 1.6 - step / 3000,
    files: ["model.safetensors", "optimizer.safetensors", "config.json"],
  })),
  sample: snapshot.sample,
  stepsAtRisk: 0,
  stepsRedone: 0,
  recovery: noDepartures,
  joinLink: "https://shoal.example/#k3v9-2mfa-hx7q-w8rt",
  config,
};
