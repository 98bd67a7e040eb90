// Which codec each boundary gets, each way: the finer one where the links have room for it. Pure; the bytes of a codec are
// planner_model.ts's. What must stay true: no boundary gets a coarser codec than the run's, and none a finer one than memory counts.
import type { BoundaryCodecs, CodecId, RunConfig } from "../../peer/wire/run.ts";
import { BYTES_PER_VALUE, type CostModel } from "./planner_model.ts";
import { predict, type Prediction } from "./planner_predict.ts";
import type { Candidate } from "./planner_search.ts";

/** A step may take this much longer for finer tensors. */
const FINER_COST = 1.01;
/** What a boundary is offered instead of a coarser codec. */
const FINER: CodecId = "f16s";
/** Sentences about boundaries that are kept. */
const SENTENCES_MAX = 8;

/** The configuration whose boundary tensors are as large as any that a boundary may get: what memory is to be counted with. */
export function withFinestCodecs(config: RunConfig): RunConfig {
  if (!config.codec_per_link) return config;
  const { codec_forward, codec_backward } = config;
  return { ...config, codec_forward: finer(codec_forward), codec_backward: finer(codec_backward) };
}

interface Choice {
  codecs: BoundaryCodecs[];
  prediction: Prediction;
}

/** Codecs per boundary, and the prediction with them. */
export function chooseCodecs(model: CostModel, candidate: Candidate, prediction: Prediction): Choice {
  const plain = plainCodecs(model, candidate);
  if (model.request.codecs !== "auto" || plain.every(isFinest)) return { codecs: plain, prediction };
  const limit = prediction.seconds * FINER_COST;
  const tried = (codecs: BoundaryCodecs[]): Choice | null => {
    const next = predict(model, candidate, prediction.schedule, { codecs, stages: prediction.stages });
    return next.seconds <= limit ? { codecs, prediction: next } : null;
  };
  const finest = tried(plain.map(bothFiner));
  if (finest !== null) return finest;
  // The quickest links first, each as long as the step allows it; where not both ways, then perhaps one.
  let best: Choice = { codecs: plain, prediction };
  const pace = (boundary: number) =>
    model.hop(candidate.stages[boundary]!.peers, candidate.stages[boundary + 1]!.peers).pace;
  for (const boundary of [...plain.keys()].toSorted((a, b) => pace(a) - pace(b))) {
    const own = plain[boundary]!;
    const { forward, backward } = bothFiner(own);
    const next = tried(best.codecs.with(boundary, { forward, backward })) ??
      tried(best.codecs.with(boundary, { ...own, backward })) ??
      tried(best.codecs.with(boundary, { ...own, forward }));
    if (next === null) break;
    best = next;
  }
  return best;
}

/** The configuration's codecs at every boundary. */
function plainCodecs(model: CostModel, { stages }: Pick<Candidate, "stages">): BoundaryCodecs[] {
  const { codec_forward: forward, codec_backward: backward } = model.request.config;
  return stages.slice(1).map(() => ({ forward, backward }));
}

function finer(codec: CodecId): CodecId {
  return BYTES_PER_VALUE[codec] < BYTES_PER_VALUE[FINER] ? FINER : codec;
}

function bothFiner({ forward, backward }: BoundaryCodecs): BoundaryCodecs {
  return { forward: finer(forward), backward: finer(backward) };
}

function isFinest({ forward, backward }: BoundaryCodecs): boolean {
  return forward === finer(forward) && backward === finer(backward);
}

/** One sentence per boundary; nothing where the run does not leave the choice to the planner. */
export function codecReasons(
  model: CostModel,
  { stages }: Pick<Candidate, "stages">,
  codecs: readonly BoundaryCodecs[],
): string[] {
  if (model.request.codecs !== "auto" || plainCodecs(model, { stages }).every(isFinest)) return [];
  return codecs.map(({ forward, backward }, s) => {
    const rate = model.slowestRate(stages[s]!.peers, stages[s + 1]!.peers);
    const both = forward === backward ? forward : `${forward} forward and ${backward} backward`;
    const why = isFinest({ forward, backward }) ? "has room at" : "carries";
    const told = rate < 1e7 ? (rate / 1e6).toPrecision(2) : (rate / 1e6).toFixed(0);
    return `Boundary ${s + 1}: ${both}, because its slowest link ${why} ${told} MB/s.`;
  }).slice(0, SENTENCES_MAX);
}
