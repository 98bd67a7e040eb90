// One byte range of a request, as peers ask for it. Not HTTP's whole grammar: several ranges, open ends and suffixes are nothing that a peer
// of ours sends, and are answered as nonsense.

export interface ByteRange {
  begin: number;
  /** Before this one. */
  end: number;
}

/** One range with both ends, inside of `bytes` and of at most `most`; null for anything else. */
export function rangeOf(header: string | undefined, bytes: number, most: number): ByteRange | null {
  const [, first, last] = /^bytes=(\d{1,15})-(\d{1,15})$/.exec(header ?? "") ?? [];
  if (first === undefined || last === undefined) return null;
  const [begin, end] = [Number(first), Number(last) + 1];
  return begin < end && end <= bytes && end - begin <= most ? { begin, end } : null;
}

/** What says which part of how much an answer is. */
export function rangeHeaders({ begin, end }: ByteRange, bytes: number): Record<string, string> {
  return {
    "content-type": "application/octet-stream",
    "content-length": String(end - begin),
    "content-range": `bytes ${begin}-${end - 1}/${bytes}`,
  };
}
