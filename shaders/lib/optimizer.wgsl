// Where a step's factors stand in `factors` (peer/model/optimizer_tensors.ts fills them), and how blocks are shared out.

const INVERSE_COUNT = 0u;
const CLIP = 1u;
const BETA1 = 2u;
const REST1 = 3u;
const BETA2 = 4u;
const REST2 = 5u;
const RATE = 6u;
const ROOT_SCALE = 7u;
const DECAY = 8u;
const EPSILON = 9u;
const LEAST_EXPONENT = 10u;
const FALLS_FREELY = 11u;

// Invocations that share one block of values.
const LANES = 8u;
