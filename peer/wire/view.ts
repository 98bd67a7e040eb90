// Questions about a view that peers and the coordinator must answer alike: who owns a micro-batch of a stage, who talks to
// whom, in which order rounds follow each other. Pure functions of the view; nothing here changes one.
import type { BoundaryCodecs, RunConfig, StagePlan, View } from "./run.ts";

/** Evaluation of k committed steps comes before training step k; orders are comparable integers. */
export function roundOrder(pass: "train" | "eval", step: number): number {
  return step * 2 + (pass === "train" ? 1 : 0);
}

/** Whether gradients are computed with weights that are one step old, so that two training steps may be open at once. */
export function isDelayed({ schedule }: Pick<RunConfig, "schedule">): boolean {
  return schedule === "2bw";
}

/** Codecs of the boundary after a stage. Both sides read them here, so what a tensor's bytes are depends on no sender. */
export function codecsAfter(
  { codecs, codecForward, codecBackward }: Pick<View, "codecs" | "codecForward" | "codecBackward">,
  stage: number,
): BoundaryCodecs {
  return codecs?.[stage] ?? { forward: codecForward, backward: codecBackward };
}

/** The peer that computes micro-batch m of a stage; evaluation micro-batches beyond N wrap round. */
export function ownerOf(stage: StagePlan, microBatch: number, count: number): string | null {
  const m = microBatch % count;
  return stage.replicas.find((replica) => replica.microBatches.includes(m))?.peer ?? null;
}

/** Whether adapters are trained in place of the model. Configurations of older files lack the key. */
export function isLora({ lora_rank = 0 }: Partial<Pick<RunConfig, "lora_rank">>): boolean {
  return lora_rank > 0;
}

/** Whether the embedding is the head, too, and is trained: the frozen one of LoRA has no gradient to exchange. */
export function isTiedModel(config: Pick<RunConfig, "tie_word_embeddings" | "lora_rank">): boolean {
  return config.tie_word_embeddings && !isLora(config);
}

export function isTiedAcross(view: View, config: RunConfig): boolean {
  return isTiedModel(config) && view.stages.length > 1;
}

/** The other end of a tied embedding: last stage for the first, first for the last, null in between. */
export function tiedPartner(view: View, config: RunConfig, stage: number): StagePlan | null {
  if (!isTiedAcross(view, config)) return null;
  const last = view.stages.length - 1;
  if (stage === 0) return view.stages[last] ?? null;
  return stage === last ? view.stages[0] ?? null : null;
}

/** Holder i of the receiving stage hears from holder (i mod R) of the sending one; learners have no sums to send. */
export function tiedReceivers(from: StagePlan, to: StagePlan, sender: string): string[] {
  const senders = from.replicas.filter((replica) => replica.learning !== true);
  const index = senders.findIndex((replica) => replica.peer === sender);
  return to.replicas.filter((_, i) => i % senders.length === index).map((replica) => replica.peer);
}

/** From so many computing replicas on, sums go by shards: fewer bytes per peer for one more hop. */
const BUTTERFLY_LEAST = 3;
/** Shards begin at whole blocks of the sums' packing. */
const SHARD_BLOCK = 64;

/**
 * Who sums which shard of a stage's gradient: the computing replicas, in the view's order. Empty if there are so few that
 * each sends its whole sum to everybody. (Butterfly all-reduce: reduce-scatter, then all-gather.)
 */
export function shardOwners(stage: StagePlan): string[] {
  const computing = stage.replicas.filter((replica) => replica.microBatches.length > 0);
  return computing.length < BUTTERFLY_LEAST ? [] : computing.map((replica) => replica.peer);
}

/** Values [start, end) of shard `index` of `count` in a gradient of `size` values, at least `count` of them. */
export function shardRange(size: number, count: number, index: number): [start: number, end: number] {
  // A frame holds at least one value, so a tiny stage is cut finer.
  const unit = size < SHARD_BLOCK * count ? 1 : SHARD_BLOCK;
  const units = Math.ceil(size / unit);
  const at = (i: number) => Math.min(size, Math.floor((i * units) / count) * unit);
  return [at(index), at(index + 1)];
}

/** Whether the peer is among the stage's holders, shadows and learners included. */
export function holds(stage: StagePlan | undefined, peer: string): boolean {
  return stage?.replicas.some((replica) => replica.peer === peer) ?? false;
}

/** The peer's share of a training step in that stage; none for a shadow, a learner or a stranger. */
export function shareOf(stage: StagePlan | undefined, peer: string): number[] {
  return stage?.replicas.find((replica) => replica.peer === peer)?.microBatches ?? [];
}

export function stagesOf(view: View, peer: string): StagePlan[] {
  return view.stages.filter((stage) => stage.replicas.some((replica) => replica.peer === peer));
}

export function peersOf(view: View): string[] {
  return [...new Set(view.stages.flatMap((stage) => stage.replicas.map((replica) => replica.peer)))];
}

/** Layers that the peer has and nobody else has, learners not counted: first and one past the last. */
export function heldOnlyBy(view: View, peer: string): [number, number][] {
  return view.stages.flatMap(({ firstLayer, endLayer, replicas }): [number, number][] => {
    const holders = replicas.filter((replica) => replica.learning !== true);
    return holders.length === 1 && holders[0]!.peer === peer ? [[firstLayer, endLayer]] : [];
  });
}

/** "layer 3" or "layers 3-4", counted from one as people do. */
export function layersText(stage: Pick<StagePlan, "firstLayer" | "endLayer">): string {
  const [first, last] = [stage.firstLayer + 1, stage.endLayer];
  return first === last ? `layer ${first}` : `layers ${first}-${last}`;
}

/** Every peer this one exchanges frames with in the view, sorted, itself excluded. */
export function neighboursOf(view: View, config: RunConfig, peer: string): string[] {
  const found = new Set<string>();
  for (const stage of stagesOf(view, peer)) {
    const near = [stage, view.stages[stage.index - 1], view.stages[stage.index + 1]];
    const partner = tiedPartner(view, config, stage.index);
    for (const other of partner === null ? near : [...near, partner]) {
      for (const replica of other?.replicas ?? []) found.add(replica.peer);
    }
  }
  found.delete(peer);
  return [...found].sort();
}
