// Which codec each boundary gets: the finer one where the link has room for it. Pure; the bytes of a codec are planner_model.ts's.
import type { CodecId } from "../../peer/wire/run.ts";
import { BYTES_PER_VALUE, type CostModel } from "./planner_model.ts";
import { predict, type Prediction } from "./planner_predict.ts";
import type { Candidate } from "./planner_search.ts";
import type { BoundaryCodecs } from "./planner_types.ts";

/** A step may take this much longer for finer tensors. */
const FINER_COST = 1.01;
/** What a boundary is offered instead of a coarser codec. */
const FINER: CodecId = "f16s";

/** Codecs per boundary, and the prediction with them. */
export function chooseCodecs(
  model: CostModel,
  candidate: Candidate,
  prediction: Prediction,
): { codecs: BoundaryCodecs[]; prediction: Prediction } {
  const { codec_forward, codec_backward } = model.request.config;
  const boundaries = candidate.stages.length - 1;
  const plain = Array.from(
    { length: boundaries },
    () => ({ forward: codec_forward, backward: codec_backward }),
  );
  if (model.request.codecs !== "auto" || boundaries === 0) return { codecs: plain, prediction };
  const limit = prediction.seconds * FINER_COST;
  const finest = tried(plain.map(finer));
  if (finest.prediction.seconds <= limit) return finest;
  // The quickest links first, each as long as the step allows it.
  let best = { codecs: plain, prediction };
  const pace = (boundary: number) =>
    model.hop(candidate.stages[boundary]!.peers, candidate.stages[boundary + 1]!.peers).pace;
  for (const boundary of [...plain.keys()].toSorted((a, b) => pace(a) - pace(b))) {
    const next = tried(best.codecs.with(boundary, finer(plain[boundary]!)));
    if (next.prediction.seconds > limit) break;
    best = next;
  }
  return best;

  function tried(codecs: BoundaryCodecs[]) {
    return { codecs, prediction: predict(model, candidate, prediction.schedule, { codecs }) };
  }
}

function finer({ forward, backward }: BoundaryCodecs): BoundaryCodecs {
  const of = (codec: CodecId) => BYTES_PER_VALUE[codec] < BYTES_PER_VALUE[FINER] ? FINER : codec;
  return { forward: of(forward), backward: of(backward) };
}
