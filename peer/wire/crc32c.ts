// CRC-32C (Castagnoli, RFC 3720 section 12.1), eight bytes per round. It finds accidents of transport and of
// storage; it is no protection against an attacker. The result must be the same on every runtime, so only
// integers are used.

/** Reflected Castagnoli polynomial. */
const POLYNOMIAL = 0x82f63b78;
/** Bytes taken per round of the main loop; one 256-entry table for each. */
const SLICES = 8;
/** Signed, because a JavaScript engine keeps signed 32-bit integers out of floating point. */
const TABLE = buildTables();

function buildTables(): Int32Array {
  const table = new Int32Array(SLICES * 256);
  for (let i = 0; i < 256; i++) {
    let c = i;
    for (let bit = 0; bit < 8; bit++) c = c & 1 ? (c >>> 1) ^ POLYNOMIAL : c >>> 1;
    table[i] = c;
  }
  for (let i = 256; i < table.length; i++) {
    const before = table[i - 256]!;
    table[i] = (before >>> 8) ^ table[before & 0xff]!;
  }
  return table;
}

/**
 * CRC of `bytes`; `seed` is the CRC of what came before, so pieces can be chained. Returns an unsigned 32-bit
 * value.
 */
export function crc32c(bytes: Uint8Array, seed = 0): number {
  const t = TABLE;
  const end = bytes.length - (bytes.length % SLICES);
  let c = ~seed;
  let i = 0;
  for (; i < end; i += SLICES) {
    const low = c ^ (bytes[i]! | (bytes[i + 1]! << 8) | (bytes[i + 2]! << 16) | (bytes[i + 3]! << 24));
    c = t[1792 + (low & 0xff)]! ^ t[1536 + ((low >>> 8) & 0xff)]! ^ t[1280 + ((low >>> 16) & 0xff)]! ^
      t[1024 + (low >>> 24)]! ^ t[768 + bytes[i + 4]!]! ^ t[512 + bytes[i + 5]!]! ^ t[256 + bytes[i + 6]!]! ^
      t[bytes[i + 7]!]!;
  }
  for (; i < bytes.length; i++) c = (c >>> 8) ^ t[(c ^ bytes[i]!) & 0xff]!;
  return ~c >>> 0;
}
