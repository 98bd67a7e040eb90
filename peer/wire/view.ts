// Questions about a view that peers and the coordinator must answer alike: who owns a micro-batch of a stage, who talks to
// whom, in which order rounds follow each other. Pure functions of the view; nothing here changes one.
import type { RunConfig, StagePlan, View } from "./run.ts";

/** Evaluation of k committed steps comes before training step k; orders are comparable integers. */
export function roundOrder(pass: "train" | "eval", step: number): number {
  return step * 2 + (pass === "train" ? 1 : 0);
}

/** The peer that computes micro-batch m of a stage; evaluation micro-batches beyond N wrap round. */
export function ownerOf(stage: StagePlan, microBatch: number, count: number): string | null {
  const m = microBatch % count;
  return stage.replicas.find((replica) => replica.microBatches.includes(m))?.peer ?? null;
}

export function isTiedAcross(view: View, config: RunConfig): boolean {
  return config.tie_word_embeddings && view.stages.length > 1;
}

/** The other end of a tied embedding: last stage for the first, first for the last, null in between. */
export function tiedPartner(view: View, config: RunConfig, stage: number): StagePlan | null {
  if (!isTiedAcross(view, config)) return null;
  const last = view.stages.length - 1;
  if (stage === 0) return view.stages[last] ?? null;
  return stage === last ? view.stages[0] ?? null : null;
}

/** Replica i of the receiving stage hears from replica (i mod R) of the sending one. */
export function tiedReceivers(from: StagePlan, to: StagePlan, sender: string): string[] {
  const index = from.replicas.findIndex((replica) => replica.peer === sender);
  return to.replicas.filter((_, i) => i % from.replicas.length === index).map((replica) => replica.peer);
}

export function stagesOf(view: View, peer: string): StagePlan[] {
  return view.stages.filter((stage) => stage.replicas.some((replica) => replica.peer === peer));
}

export function peersOf(view: View): string[] {
  return [...new Set(view.stages.flatMap((stage) => stage.replicas.map((replica) => replica.peer)))];
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
