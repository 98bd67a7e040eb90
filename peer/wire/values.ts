// Kinds of values in control messages, with their bounds, as docs/protocol.md lists them. Schemas only.
import * as v from "valibot";

const TEXT_CHARS_MAX = 512;
/** Micro-batches per step never exceed this (config.ts), nor do stages. */
export const COUNT_MAX = 256;

/** In place of a state's hash: the state is on a GPU and was not read, so there is nothing to compare. */
export const UNREAD_STATE = "unread";

export const text = v.pipe(v.string(), v.maxLength(TEXT_CHARS_MAX));
export const id = v.pipe(v.string(), v.minLength(1), v.maxLength(64));
export const count = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(0xffffffff));
export const small = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(COUNT_MAX));
export const measure = v.pipe(v.number(), v.finite(), v.minValue(0));
