// How long peers may take to load a view. Pure. Not silence: a peer that loads is heard all the while, so this bounds only what is slow.
import { baseSpec, stageLayout } from "../../peer/model/layout.ts";
import type { StateSource } from "../../peer/wire/control.ts";
import type { ModelSpec, View } from "../../peer/wire/run.ts";
import { peersOf, stagesOf } from "../../peer/wire/view.ts";

/** Download, connect and compile; slower peers are dropped so that the rest goes on. */
export const LOADING_MS = 120_000;
/** A line that is slower than this brings a model too late, whatever is waited. */
const BASE_BYTES_PER_MS = 1000;

/**
 * Also what the fullest peer has to fetch of a model that is fine-tuned, frozen or as the view's source: who is sent away meanwhile begins
 * from nothing.
 */
export function loadingMs(spec: ModelSpec, view: View, source: StateSource | null = null): number {
  const begins = source?.files.some((file) => file.base !== undefined) === true;
  if (spec.lora === undefined && !begins) return LOADING_MS;
  const base = baseSpec(spec);
  const floats = peersOf(view).map((peer) =>
    stagesOf(view, peer).reduce((sum, stage) => sum + stageLayout(base, stage).size, 0)
  );
  return LOADING_MS + Math.ceil(4 * Math.max(...floats) / BASE_BYTES_PER_MS);
}
