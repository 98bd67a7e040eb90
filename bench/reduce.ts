// What weight gradients cost on the wire and what the coarse grid costs in loss: both modes of `reduce`, the same seeds.
// Not a test: nothing fails on a bad figure. `deno run bench/reduce.ts --help` lists the flags.
import { loadCorpus } from "../coordinator/store/corpus.ts";
import { createCpuEngine } from "../peer/engine/cpu.ts";
import { readConfig } from "../peer/model/config.ts";
import type { Corpus } from "../peer/model/data.ts";
import { paramCount, specOf, wholeModel } from "../peer/model/layout.ts";
import type { ModelSpec, ReduceId, RunConfig } from "../peer/wire/run.ts";
import { mean, timeReduce, type Timing, train, type Training } from "./reduce_measure.ts";
import { aligned, flagValues, runMain, wholeFlag } from "./support.ts";

const MODES: readonly ReduceId[] = ["raw32", "int8"];
/** The first step has a grid of its own, so there is nothing to report before the second; more than the most is hours. */
const STEPS_MIN = 2;
const STEPS_MAX = 10_000;
const SEEDS_MAX = 20;
const FIRST_SEED = 1337;
/** On stderr, so that a long run shows that it lives. */
const STEPS_PER_LINE = 50;

const HELP = `usage: deno run bench/reduce.ts [flags]
Trains a small character model on Moby Dick in one process (CPU kernels in double precision), once per mode and seed.

  --steps N       steps of each training (200)
  --seeds N       trainings per mode, from seed ${FIRST_SEED} upwards (1); see below why one says little
  --demo          the demo's model (4 layers, C 64, T 64) instead of the small one (2 layers, C 32, T 32)
  --json          print one JSON object, with a summary, as the last line
  --help          show this text

Rounding alone leads a training elsewhere, to a loss up to about 0.01 higher or lower; so look at the mean difference over
several seeds beside its standard error. Bytes are per parameter and step: "part" is what one of two replicas sends,
"total" what a log keeps; the first step, whose grid is fine in both modes, is a column of its own. Times are per value of
the demo's model, the least of many rounds: "encode" and "decode" turn a sum into a payload and back.`;

const OPTIONS = {
  "steps": { type: "string", default: "200" },
  "seeds": { type: "string", default: "1" },
  "demo": { type: "boolean", default: false },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

export interface Flags {
  steps: number;
  seeds: number;
  demo: boolean;
  json: boolean;
  help: boolean;
}

/** Throws `usage` on flags that mean nothing. */
export function parseFlags(args: string[]): Flags {
  const values = flagValues(args, OPTIONS);
  return {
    ...values,
    steps: wholeFlag("steps", values.steps, [STEPS_MIN, STEPS_MAX]),
    seeds: wholeFlag("seeds", values.seeds, [1, SEEDS_MAX]),
  };
}

/** The small model trains in a minute; the demo's is the default configuration. */
export function configOf({ steps, demo }: Flags, seed: number, reduce: ReduceId): RunConfig {
  const small = { n_layer: 2, n_embd: 32, n_head: 2, n_kv_head: 1, n_inner: 96, block_size: 32 };
  return readConfig({ ...(demo ? {} : small), max_iters: steps, seed, reduce });
}

async function trainAll(flags: Flags, spec: ModelSpec, corpus: Corpus): Promise<Training[]> {
  const { batch_size: batchSize } = configOf(flags, FIRST_SEED, "int8");
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  const engine = createCpuEngine({ spec, stage: wholeModel(spec), batchSize, slots: 1, ...codecs });
  const trainings: Training[] = [];
  for (let seed = FIRST_SEED; seed < FIRST_SEED + flags.seeds; seed++) {
    for (const reduce of MODES) {
      const setup = { config: configOf(flags, seed, reduce), spec, corpus, engine };
      trainings.push(
        await train(setup, (step, loss) => {
          if ((step + 1) % STEPS_PER_LINE !== 0) return;
          console.error(`${reduce} seed ${seed} step ${step + 1}: loss ${loss.toFixed(4)}`);
        }),
      );
    }
  }
  engine.destroy();
  return trainings;
}

export interface Summary {
  /** int8 minus raw32, mean over the seeds; its standard error is null with one seed. */
  val_loss_difference: number;
  val_loss_difference_error: number | null;
  train_loss_difference: number;
  bytes_per_param_part: number;
  bytes_per_param_total: number;
  /** Times of int8 relative to raw32. */
  quantise_slowdown: number;
}

/** Trainings come in pairs, raw32 and int8 of one seed. */
export function summarise(trainings: readonly Training[], timings: readonly Timing[]): Summary {
  const [raw, int8] = MODES.map((mode) => trainings.filter(({ reduce }) => reduce === mode)) as [
    Training[],
    Training[],
  ];
  const differences = int8.map(({ valLoss }, i) => valLoss - raw[i]!.valLoss);
  const centre = mean(differences);
  const squares = differences.reduce((sum, difference) => sum + (difference - centre) ** 2, 0);
  const n = differences.length;
  const time = (mode: ReduceId) => timings.find(({ reduce }) => reduce === mode)!.quantise;
  return {
    val_loss_difference: centre,
    val_loss_difference_error: n > 1 ? Math.sqrt(squares / (n - 1) / n) : null,
    train_loss_difference: mean(int8.map(({ trainLoss }, i) => trainLoss - raw[i]!.trainLoss)),
    bytes_per_param_part: mean(int8.map(({ bytesPerParam }) => bytesPerParam.part)),
    bytes_per_param_total: mean(int8.map(({ bytesPerParam }) => bytesPerParam.total)),
    quantise_slowdown: time("int8") / time("raw32"),
  };
}

export function table(trainings: readonly Training[], timings: readonly Timing[]): string {
  const trained = trainings.map((it) => [
    it.reduce,
    String(it.seed),
    it.trainLoss.toFixed(4),
    it.valLoss.toFixed(4),
    it.bytesPerParam.part.toFixed(3),
    it.bytesPerParam.total.toFixed(3),
    it.firstTotal.toFixed(3),
    String(it.saturated),
  ]);
  const timed = timings.map((it) => [
    it.reduce,
    ...[it.quantise, it.encode, it.decode].map((ns) => ns.toFixed(2)),
  ]);
  return [
    ...aligned([["reduce", "seed", "train", "val", "part B", "total B", "first B", "saturated"], ...trained]),
    "",
    ...aligned([["reduce", "quantise ns", "encode ns", "decode ns"], ...timed]),
  ].join("\n");
}

async function main(args: string[]): Promise<void> {
  const flags = parseFlags(args);
  if (flags.help) return console.log(HELP);
  const loaded = await loadCorpus("moby-dick");
  const config = configOf(flags, FIRST_SEED, "int8");
  const spec = specOf(config, loaded.vocab.length);
  const timed = specOf(readConfig({}), loaded.vocab.length);
  const timings = MODES.map((mode) => timeReduce(timed, mode));
  const trainings = await trainAll(flags, spec, loaded.tokens);
  const { batch_size: batch, gradient_accumulation_steps: microBatches } = config;
  const shape = `${
    paramCount(spec)
  } parameters, ${microBatches} micro-batches of ${batch} x ${spec.block_size}`;
  console.log(`${shape}, ${flags.steps} steps; times per value of ${paramCount(timed)} parameters`);
  console.log(table(trainings, timings));
  if (!flags.json) return;
  const setting = {
    ...spec,
    batch_size: batch,
    gradient_accumulation_steps: microBatches,
    steps: flags.steps,
  };
  const summary = summarise(trainings, timings);
  console.log(JSON.stringify({ benchmark: "reduce", setting, trainings, timings, summary }));
}

if (import.meta.main) await runMain(main);
