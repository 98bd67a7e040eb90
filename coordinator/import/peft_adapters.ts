// A PEFT folder (adapter_config.json, adapter_model.safetensors) -> the adapters of a run, beside the model they were made for. It says
// rank, alpha and matrices, and fills in one of our tensors at a time; files may come from anywhere. What must stay true: base and
// adapters give the model that PEFT gives. Kinds of adapters that we do not compute are refused by name.
import { join } from "node:path";
import {
  findTensor,
  isGpt2,
  LORA_A,
  LORA_B,
  stageLayout,
  type TensorLayout,
  wholeModel,
} from "../../peer/model/layout.ts";
import { HF_PREFIX } from "../../peer/model/hf_gpt2.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { LORA_TARGETS, type LoraTarget, type ModelSpec, type RunConfig } from "../../peer/wire/run.ts";
import { GPT2_MODULES, moduleOf } from "../export/peft.ts";
import { isRecord, positive, shown, whole } from "./json.ts";
import { FolderPlace } from "./model_place.ts";
import { TensorFile } from "./tensor_file.ts";

const CONFIG_NAME = "adapter_config.json";
const WEIGHTS_NAME = "adapter_model.safetensors";
/** The configuration is a page. */
const CONFIG_BYTES_MAX = 1 << 20;
/** As lora_rank; a bound on what one tensor may take. */
const RANK_MAX = 1024;
const PREFIX = "base_model.model.";

/** Keys of other kinds of adapters, and the value that they have in ours. */
const PLAIN: Readonly<Record<string, unknown>> = {
  ...{ use_dora: false, bias: "none", lora_bias: false, modules_to_save: null, layer_replication: null },
  ...{ trainable_token_indices: null, alora_invocation_tokens: null },
};

/** One module of the model that has adapters, and our matrices in it. */
interface Fitted {
  /** Of the file, before LORA_A and LORA_B. */
  name: string;
  into: number;
  out: number;
  rank: number;
  /** How often B·A counts. */
  scale: number;
  parts: { module: string; target: LoraTarget; row: number; rows: number }[];
}

/** Columns of a module's B that our matrix takes. */
interface Taken {
  fitted: Fitted;
  row: number;
  rows: number;
  columns: number[];
}

export class PeftAdapters {
  readonly config: Pick<RunConfig, "lora_rank" | "lora_alpha" | "lora_targets">;
  readonly #file: TensorFile;
  readonly #taken: ReadonlyMap<string, Taken>;
  readonly #scale: number;

  private constructor(
    file: TensorFile,
    content: { config: PeftAdapters["config"]; taken: ReadonlyMap<string, Taken>; scale: number },
  ) {
    this.#file = file;
    this.config = content.config;
    this.#taken = content.taken;
    this.#scale = content.scale;
  }

  /** @param spec Of the model itself. @throws {ShoalError} bad-model naming what is missing, left over, or does not fit */
  static async open(folder: string, spec: ModelSpec): Promise<PeftAdapters> {
    const json = await readConfigFile(join(folder, CONFIG_NAME));
    const file = await TensorFile.open(await new FolderPlace(folder).open(WEIGHTS_NAME));
    try {
      const modules = fittedModules(folder, { spec, file, json });
      const taken = new Map<string, Taken>();
      for (const fitted of modules) {
        for (const [module, part] of await partsOf(file, fitted)) taken.set(module, part);
      }
      const scale = scaleOf(json, null);
      const rank = Math.max(...[...taken.values()].map(({ columns }) => columns.length));
      const named = new Set([...taken.keys()].map((module) => module.split(".").at(-1)));
      const lora_targets = LORA_TARGETS.filter((target) => named.has(target)).join(",");
      const config = { lora_rank: rank, lora_alpha: scale * rank, lora_targets };
      return new PeftAdapters(file, { config, taken, scale });
    } catch (error) {
      file.close();
      throw error;
    }
  }

  /**
   * Fills in one of our adapters. Of a rank beyond the file's, `into` keeps what it has: A as a new adapter begins, B zero.
   * @throws {ShoalError} bad-model for a value that is not finite
   */
  async read({ name, shape }: TensorLayout, into: Float32Array): Promise<void> {
    const isA = name.endsWith(LORA_A),
      taken = this.#taken.get(name.slice(0, -(isA ? LORA_A : LORA_B).length));
    // In other layers than those that have it, an adapter begins anew.
    if (taken === undefined) return;
    const { fitted, columns, row, rows } = taken;
    if (isA) {
      const a = await readA(this.#file, fitted), width = shape[1]!;
      columns.forEach((from, r) => into.set(a.subarray(from * width, (from + 1) * width), r * width));
      return;
    }
    const b = await readB(this.#file, fitted), rank = shape[1]!, factor = fitted.scale / this.#scale;
    for (let i = 0; i < rows; i++) {
      columns.forEach((from, r) => into[i * rank + r] = factor * b[(row + i) * fitted.rank + from]!);
    }
  }

  close(): void {
    this.#file.close();
  }
}

async function readConfigFile(path: string): Promise<Record<string, unknown>> {
  const json = await parsed(path);
  if (!isRecord(json) || json.peft_type !== "LORA") {
    throw bad(
      path,
      `peft_type is ${shown(isRecord(json) ? json.peft_type : json)}; only LORA can be imported`,
    );
  }
  for (const [name, ours] of Object.entries(PLAIN)) {
    const value = json[name] ?? ours;
    if (value === ours || (Array.isArray(value) && value.length === 0)) continue;
    throw bad(path, `${name} is ${shown(value)}; our adapters are a product B·A alone`);
  }
  for (const name of ["rank_pattern", "alpha_pattern"]) {
    const wrong = Object.entries(isRecord(json[name]) ? json[name] : {})
      .find(([key, value]) => !/^[\w.]+$/.test(key) || positive(value) === null);
    if (wrong !== undefined) {
      throw bad(path, `${name} has ${shown(wrong)}; only a module's name with a number above 0 can be read`);
    }
  }
  if (whole(json, "r") === null) throw bad(path, `r is ${shown(json.r)}, no rank`);
  if (positive(json.lora_alpha) === null) {
    throw bad(path, `lora_alpha is ${shown(json.lora_alpha)}, no number above 0`);
  }
  return json;
}

async function parsed(path: string): Promise<unknown> {
  try {
    const { size, isFile } = await Deno.stat(path);
    if (!isFile || size > CONFIG_BYTES_MAX) throw bad(path, `it has ${size} bytes; it is no configuration`);
    return JSON.parse(await Deno.readTextFile(path));
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) throw bad(path, "there is no such file; name a PEFT folder");
    if (error instanceof SyntaxError) throw bad(path, `it is not JSON: ${messageOf(error).slice(0, 200)}`);
    throw error;
  }
}

/** Alpha over rank, or over its root; of a module by its own patterns. */
function scaleOf(json: Record<string, unknown>, module: string | null): number {
  const rank = ofPattern(json.rank_pattern, module) ?? Number(json.r);
  const alpha = ofPattern(json.alpha_pattern, module) ?? Number(json.lora_alpha);
  return alpha / (json.use_rslora === true ? Math.sqrt(rank) : rank);
}

/** Of a module whose name ends so; the first that does counts. */
function ofPattern(pattern: unknown, module: string | null): number | null {
  if (module === null || !isRecord(pattern)) return null;
  const key = Object.keys(pattern).find((it) => module === it || module.endsWith(`.${it}`));
  return key === undefined ? null : positive(pattern[key]);
}

interface Opened {
  spec: ModelSpec;
  file: TensorFile;
  json: Record<string, unknown>;
}

/** The model's modules that have adapters in the file, in shape; no tensor of the file may be left over. */
function fittedModules(folder: string, { spec, file, json }: Opened): Fitted[] {
  const path = join(folder, WEIGHTS_NAME), fitted: Fitted[] = [], known = new Set<string>();
  for (const { name, out, into, parts } of modulesOf(spec)) {
    const a = file.tensors.get(PREFIX + name + LORA_A), b = file.tensors.get(PREFIX + name + LORA_B);
    if (a === undefined && b === undefined) continue;
    const [missing] = a === undefined ? [LORA_A] : b === undefined ? [LORA_B] : [];
    if (missing !== undefined) throw bad(path, `tensor ${PREFIX}${name}${missing} is missing`);
    const rank = ofPattern(json.rank_pattern, name) ?? Number(json.r);
    if (rank > RANK_MAX) throw bad(path, `${name} has rank ${rank}; at most ${RANK_MAX} is possible`);
    if (String(a!.shape) !== String([rank, into]) || String(b!.shape) !== String([out, rank])) {
      const wanted = `A [${rank},${into}] and B [${out},${rank}]`;
      throw bad(
        path,
        `${name} has A [${a!.shape}] and B [${b!.shape}]; ${CONFIG_NAME} and the model say ${wanted}`,
      );
    }
    known.add(PREFIX + name + LORA_A).add(PREFIX + name + LORA_B);
    fitted.push({ name: PREFIX + name, out, into, rank, scale: scaleOf(json, name), parts });
  }
  const foreign = [...file.tensors.keys()].find((name) => !known.has(name));
  if (foreign !== undefined) {
    throw bad(
      path,
      `tensor ${
        JSON.stringify(foreign).slice(0, 120)
      } belongs to no matrix of the model that can have adapters`,
    );
  }
  if (fitted.length === 0) throw bad(path, "it has no adapters");
  return fitted;
}

/** What transformers calls the model's matrices, and which of ours are in each, from which row on. */
function modulesOf(spec: ModelSpec): Pick<Fitted, "name" | "out" | "into" | "parts">[] {
  const layout = stageLayout(spec, wholeModel(spec)),
    layers = Array.from({ length: spec.n_layer }, (_, i) => i);
  return layers.flatMap((layer) => {
    const part = (target: LoraTarget) => ({ target, module: moduleOf(layer, target) });
    const ours = (target: LoraTarget) => findTensor(layout, `${moduleOf(layer, target)}.weight`);
    const there = LORA_TARGETS.filter((target) => ours(target) !== undefined);
    const modules = isGpt2(spec)
      ? GPT2_MODULES.map(({ module, ours }) => ({ name: `${HF_PREFIX}h.${layer}.${module}`, targets: ours }))
      : there.map((target) => ({ name: moduleOf(layer, target), targets: [target] }));
    return modules.map(({ name, targets }) => {
      let out = 0;
      const parts = targets.map((target) => {
        const { shape: [rows] } = ours(target)!;
        out += rows!;
        return { ...part(target), row: out - rows!, rows: rows! };
      });
      return { name, out, into: ours(targets[0]!)!.shape[1]!, parts };
    });
  });
}

/**
 * What each of our matrices takes. Of several in one module that share no column of B, each takes those that it has: so the ranks
 * that an export of ours added up come apart again. Otherwise each takes all, and what they share becomes a copy for each.
 */
async function partsOf(file: TensorFile, fitted: Fitted): Promise<[module: string, taken: Taken][]> {
  const { parts, rank } = fitted, all = Array.from({ length: rank }, (_, column) => column);
  const whole = parts.map((
    { module, row, rows },
  ): [string, Taken] => [module, { fitted, row, rows, columns: all }]);
  if (parts.length === 1) return whole;
  const b = await readB(file, fitted);
  const own = whole.map(([module, taken]): [string, Taken] => {
    const rows = Array.from({ length: taken.rows }, (_, i) => (taken.row + i) * rank);
    const columns = all.filter((column) => rows.some((at) => b[at + column] !== 0));
    return [module, { ...taken, columns }];
  });
  const used = own.flatMap(([, { columns }]) => columns);
  const apart = used.length > 0 && new Set(used).size === used.length;
  return apart ? own.filter(([, { columns }]) => columns.length > 0) : whole;
}

async function readA(file: TensorFile, { name, rank, into }: Fitted): Promise<Float32Array> {
  const values = new Float32Array(rank * into);
  await file.read(name + LORA_A, [rank, into], { into: values });
  return values;
}

async function readB(file: TensorFile, { name, rank, out }: Fitted): Promise<Float32Array> {
  const values = new Float32Array(rank * out);
  await file.read(name + LORA_B, [out, rank], { into: values });
  return values;
}

function bad(path: string, reason: string): ShoalError {
  return new ShoalError("bad-model", `${path}: ${reason}`);
}
