// Runs with `dtype` f16 whose first steps overflow, drawn from scenarios in which somebody goes at the wrong moment. Data only.
// What must stay true: a step that is passed over is passed over by everybody, and by the one-process run.

/** Departures between a step's parts, its log and its commit; restarts; a run that goes back to before an overflow. */
export const OVERFLOWING: readonly string[] = [
  ...["calm", "crash", "crashes", "rejoin", "second-failure", "replicas", "butterfly", "shadow"],
  ...["coordinator-crash", "torn-log", "last-holder", "pause-leave-join", "late", "zombie"],
];

/** The least model that can be kept in halves. */
const SHAPE = { dtype: "f16", n_embd: 8, n_head: 1, n_kv_head: 1, n_inner: 4 };

export function inHalves<T extends { config: Record<string, unknown> }>(setting: T): T {
  return { ...setting, config: { ...setting.config, ...SHAPE, tie_word_embeddings: false } };
}
