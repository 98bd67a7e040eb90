// Who gets which shard of a snapshot this time. Pure; the coordinator decides with it, and tests of the peer's side agree with it.

/**
 * Which shard each of the k + 1 keepers gets in snapshot number `turn`. The parity wanders: each turn it changes places
 * with one data shard, as the hole of a sliding puzzle does, so no keeper holds it for ever and the other k - 1 keep
 * their shard, of which only changed chunks must travel.
 */
export function rotation(k: number, turn: number): number[] {
  const slots = Array.from({ length: k + 1 }, (_, i) => i);
  let hole = k;
  for (let i = turn % (k * (k + 1)); i > 0; i--) {
    const next = (hole + 1) % (k + 1);
    [slots[hole], slots[next]] = [slots[next]!, slots[hole]!];
    hole = next;
  }
  return slots;
}
