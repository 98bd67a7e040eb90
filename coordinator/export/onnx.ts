// A trained model as an ONNX graph of standard operators, with the inputs and outputs that transformers.js and Optimum give
// decoders: new tokens, a mask over past and new ones, positions, and each layer's keys and values so far. Pure.
// A Llama and a GPT-2 differ in what positions, norms and inner layers are, and in that the latter has biases.
// Legend of shapes: B sequences, S new tokens, P past ones, N = P + S, C n_embd, H and K heads of queries and of keys,
// G = H / K, D width of a head. Everything is computed in f32; f16 is only how weights are stored.
import { EMBEDDING_NAME, HEAD_NAME, headDim, isGpt2, POSITIONS_NAME } from "../../peer/model/layout.ts";
import { turn } from "../../peer/model/hf_gpt2.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { dtypeBytes, encodeValues, type ExportDtype } from "./dtypes.ts";
import { GraphBuilder, type ModelAbout } from "./onnx_graph.ts";
import type { Piece } from "./pieces.ts";
import type { WeightSource } from "./source.ts";

export interface OnnxOptions {
  dtype: ExportDtype;
  about: ModelAbout;
  /** Name of the second file, used only beyond `inlineBytesMax`. */
  external: string;
  inlineBytesMax?: number;
}

/** Added to scores that may not be seen. Finite, so that a row that is all padding gives no NaN. */
const HIDDEN_SCORE = -3.4028234663852886e38;

/**
 * input_ids int64 [B, S], attention_mask int64 [B, N], position_ids int64 [B, S] and past_key_values.<layer>.key and .value
 * f32 [B, K, P, D] to logits f32 [B, S, V] and present.<layer>.key and .value [B, K, N, D]. P may be 0.
 * @throws {ShoalError} usage for a type other than f32 and f16.
 */
export function onnxModel(
  source: WeightSource,
  options: OnnxOptions,
): { model: Piece[]; external: Piece[] | null } {
  if (options.dtype !== "f32" && options.dtype !== "f16") {
    throw new ShoalError(
      "usage",
      `ONNX files are written as f32 or f16, not ${options.dtype}; choose one of them`,
    );
  }
  const build = new GraphBuilder();
  const model = new DecoderGraph(build, source, options.dtype);
  model.write();
  return build.build(options.about, options);
}

/** Of GPT-2's inner layer; slope is sqrt(2 / pi). */
const GELU = { slope: Math.sqrt(2 / Math.PI), cubic: 0.044715, half: 0.5, one: 1 } as const;

/** Values that all layers share. */
interface Shared {
  /** cos and sin, [B, 1, S, D/2] for keys and [B, 1, 1, S, D/2] for queries; absent where nothing is rotated. */
  keys?: readonly [cos: string, sin: string];
  queries?: readonly [cos: string, sin: string];
  /** 0 or HIDDEN_SCORE, [B, 1, 1, S, N]. */
  mask: string;
}

class DecoderGraph {
  readonly #build: GraphBuilder;
  readonly #source: WeightSource;
  readonly #spec: ModelSpec;
  readonly #dtype: ExportDtype;

  constructor(build: GraphBuilder, source: WeightSource, dtype: ExportDtype) {
    this.#build = build;
    this.#source = source;
    this.#spec = source.spec;
    this.#dtype = dtype;
  }

  write(): void {
    const b = this.#build, { vocab_size: V, n_embd: C, n_layer } = this.#spec;
    const ids = b.input("input_ids", "int64", ["batch", "sequence"]);
    b.input("attention_mask", "int64", ["batch", "total_sequence"]);
    b.input("position_ids", "int64", ["batch", "sequence"]);
    this.#constants();
    const shared = { ...(this.#gpt2 ? {} : this.#rotation()), mask: this.#mask() };
    const embedding = this.#weight(EMBEDDING_NAME, [V, C], false);
    let x = this.#placed(b.node("Gather", "embedded", [embedding, ids]));
    const presents: string[] = [];
    for (let layer = 0; layer < n_layer; layer++) x = this.#layer(layer, x, { shared, presents });
    const normed = this.#norm("model.norm", x);
    const head = this.#spec.tie_word_embeddings
      ? b.node("Transpose", "head.matrix", [embedding], { perm: { ints: [1, 0] } })
      : this.#weight(HEAD_NAME, [V, C], true);
    b.node("MatMul", "logits", [normed, head]);
    b.output("logits", "float", ["batch", "sequence", V]);
    for (const present of presents) b.output(present, "float", this.#cacheShape("total_sequence"));
  }

  get #gpt2(): boolean {
    return isGpt2(this.#spec);
  }

  /** GPT-2 adds a learned vector to each token, by its position. */
  #placed(x: string): string {
    if (!this.#gpt2) return x;
    const b = this.#build, { block_size: T, n_embd: C } = this.#spec;
    const rows = b.node("Gather", "placed", [this.#weight(POSITIONS_NAME, [T, C], false), "position_ids"]);
    return b.node("Add", "entered", [x, rows]);
  }

  /** Axes, shapes and numbers that several nodes use. */
  #constants(): void {
    const b = this.#build, { n_head: H, n_kv_head: K, norm_eps } = this.#spec, D = headDim(this.#spec);
    for (const axis of [1, 2]) b.ints(`axis.${axis}`, [axis]);
    b.ints("axes.1-2", [1, 2]);
    b.ints("axes.1-2-3", [1, 2, 3]);
    b.ints("zero", [0], []);
    b.ints("one", [1], []);
    // A 0 keeps the dimension of the value that is reshaped.
    b.ints("shape.queries", [0, 0, K, H / K, D]);
    b.ints("shape.keys", [0, 0, K, D]);
    b.ints("shape.joined", [0, 0, H * D]);
    b.floats("epsilon", [norm_eps]);
    b.floats("scale", [1 / Math.sqrt(D)]);
    b.floats("seen", [0]);
    b.floats("hidden", [HIDDEN_SCORE]);
    if (this.#gpt2) {
      for (const [name, value] of Object.entries(GELU)) b.floats(`gelu.${name}`, [value]);
      return;
    }
    b.ints("halves", [D / 2, D / 2]);
    b.floats("frequencies", Array.from({ length: D / 2 }, (_, i) => this.#spec.rope_theta ** (-2 * i / D)), [
      D / 2,
    ]);
  }

  /** Angles are position * theta^(-2i/D), as in Hugging Face's Llama. */
  #rotation(): Pick<Shared, "keys" | "queries"> {
    const b = this.#build;
    const positions = b.node("Cast", "positions", ["position_ids"], { to: { int: 1 } });
    const column = b.node("Unsqueeze", "positions.column", [positions, b.ints("axis.last", [-1])]);
    const angles = b.node("Mul", "angles", [column, "frequencies"]);
    const both = (name: string, axes: string) =>
      ["Cos", "Sin"].map((type) => {
        const value = b.node(type, `${name}.${type}.flat`, [angles]);
        return b.node("Unsqueeze", `${name}.${type}`, [value, axes]);
      }) as [string, string];
    return { keys: both("keys", "axis.1"), queries: both("queries", "axes.1-2") };
  }

  /** A token sees itself and what lies before it, unless attention_mask is 0 there. */
  #mask(): string {
    const b = this.#build;
    const total = b.node("Gather", "total", [b.node("Shape", "mask.shape", ["attention_mask"]), "one"]);
    const fresh = b.node("Gather", "fresh", [b.node("Shape", "ids.shape", ["input_ids"]), "one"]);
    const past = b.node("Sub", "past", [total, fresh]);
    const seen = b.node("Range", "columns", ["zero", total, "one"]);
    const rows = b.node("Unsqueeze", "rows", [b.node("Range", "rows.flat", [past, total, "one"]), "axis.1"]);
    const causal = b.node("LessOrEqual", "causal", [seen, rows]);
    const given = b.node("Cast", "given.flat", ["attention_mask"], { to: { int: 9 } });
    const allowed = b.node("And", "allowed", [b.node("Unsqueeze", "given", [given, "axes.1-2-3"]), causal]);
    return b.node("Where", "mask", [allowed, "seen", "hidden"]);
  }

  #layer(layer: number, x: string, { shared, presents }: { shared: Shared; presents: string[] }): string {
    const b = this.#build, { n_inner: I, n_embd: C } = this.#spec, prefix = `model.layers.${layer}`;
    const attended = this.#attention(layer, this.#norm(`${prefix}.input_layernorm`, x), { shared, presents });
    const middle = b.node("Add", `${prefix}.attended`, [x, attended]);
    const normed = this.#norm(`${prefix}.post_attention_layernorm`, middle);
    const act = this.#gpt2
      ? this.#gelu(`${prefix}.gelu`, this.#linear(`${prefix}.mlp.up_proj`, [I, C], normed))
      : this.#gated(prefix, normed);
    return b.node("Add", `${prefix}.out`, [middle, this.#linear(`${prefix}.mlp.down_proj`, [C, I], act)]);
  }

  /** silu(gate) up */
  #gated(prefix: string, normed: string): string {
    const b = this.#build, { n_inner: I, n_embd: C } = this.#spec;
    const gate = this.#linear(`${prefix}.mlp.gate_proj`, [I, C], normed);
    const silu = b.node("Mul", `${prefix}.silu`, [gate, b.node("Sigmoid", `${prefix}.sigmoid`, [gate])]);
    return b.node("Mul", `${prefix}.act`, [silu, this.#linear(`${prefix}.mlp.up_proj`, [I, C], normed)]);
  }

  /** x / 2 (1 + tanh(slope (x + cubic x^3))) */
  #gelu(name: string, x: string): string {
    const b = this.#build;
    const of = (type: string, part: string, inputs: string[]) => b.node(type, `${name}.${part}`, inputs);
    const cube = of("Mul", "cube", [of("Mul", "square", [x, x]), x]);
    const sum = of("Add", "sum", [x, of("Mul", "cubic", [cube, "gelu.cubic"])]);
    const tanh = of("Tanh", "tanh", [of("Mul", "argument", [sum, "gelu.slope"])]);
    return of("Mul", "out", [of("Mul", "half", [x, "gelu.half"]), of("Add", "factor", [tanh, "gelu.one"])]);
  }

  #attention(layer: number, x: string, { shared, presents }: { shared: Shared; presents: string[] }): string {
    const b = this.#build, { n_embd: C, n_head: H, n_kv_head: K } = this.#spec, D = headDim(this.#spec);
    const at = `model.layers.${layer}.self_attn`;
    const flat = this.#linear(`${at}.q_proj`, [H * D, C], x);
    const split = b.node("Reshape", `${at}.q.split`, [flat, "shape.queries"]);
    const queries = b.node("Transpose", `${at}.q`, [split], { perm: { ints: [0, 2, 3, 1, 4] } });
    const rotated = this.#rotate(`${at}.q`, queries, shared.queries);
    const fresh = this.#rotate(`${at}.k`, this.#heads(`${at}.k`, [K * D, C], x), shared.keys);
    const keys = this.#withPast(layer, "key", fresh);
    const values = this.#withPast(layer, "value", this.#heads(`${at}.v`, [K * D, C], x));
    presents.push(keys, values);
    const turned = b.node("Transpose", `${at}.k.turned`, [keys], { perm: { ints: [0, 1, 3, 2] } });
    const products = b.node("MatMul", `${at}.products`, [
      rotated,
      b.node("Unsqueeze", `${at}.k.shared`, [turned, "axis.2"]),
    ]);
    const scaled = b.node("Mul", `${at}.scaled`, [products, "scale"]);
    const scores = b.node("Add", `${at}.scores`, [scaled, shared.mask]);
    const weights = b.node("Softmax", `${at}.weights`, [scores], { axis: { int: -1 } });
    const mixed = b.node("MatMul", `${at}.mixed`, [
      weights,
      b.node("Unsqueeze", `${at}.v.shared`, [values, "axis.2"]),
    ]);
    const back = b.node("Transpose", `${at}.back`, [mixed], { perm: { ints: [0, 3, 1, 2, 4] } });
    return this.#linear(
      `${at}.o_proj`,
      [C, H * D],
      b.node("Reshape", `${at}.joined`, [back, "shape.joined"]),
    );
  }

  /** [B, S, C] to the projection's heads [B, K, S, D]. */
  #heads(name: string, shape: readonly [number, number], x: string): string {
    const b = this.#build;
    const split = b.node("Reshape", `${name}.split`, [this.#linear(`${name}_proj`, shape, x), "shape.keys"]);
    return b.node("Transpose", `${name}.heads`, [split], { perm: { ints: [0, 2, 1, 3] } });
  }

  /** Elements i and i + D/2 of the last axis turn by the angle of their position. */
  #rotate(name: string, x: string, angles: readonly [string, string] | undefined): string {
    if (angles === undefined) return x;
    const b = this.#build, [cos, sin] = angles;
    const [low, high] = b.nodes("Split", [`${name}.low`, `${name}.high`], [x, "halves"], {
      axis: { int: -1 },
    });
    const part = (which: string, type: string, [u, v]: readonly [string, string]) =>
      b.node(type, `${name}.${which}`, [
        b.node("Mul", `${name}.${which}.cos`, [u, cos]),
        b.node("Mul", `${name}.${which}.sin`, [v, sin]),
      ]);
    const halves = [part("turned.low", "Sub", [low!, high!]), part("turned.high", "Add", [high!, low!])];
    return b.node("Concat", `${name}.rotated`, halves, { axis: { int: -1 } });
  }

  #withPast(layer: number, what: "key" | "value", fresh: string): string {
    const past = this.#build.input(
      `past_key_values.${layer}.${what}`,
      "float",
      this.#cacheShape("past_sequence"),
    );
    return this.#build.node("Concat", `present.${layer}.${what}`, [past, fresh], { axis: { int: 2 } });
  }

  #cacheShape(length: string): (number | string)[] {
    return ["batch", this.#spec.n_kv_head, length, headDim(this.#spec)];
  }

  /** x / sqrt(mean(x^2) + epsilon) * weight; of GPT-2 the same of x - mean(x), plus a bias. */
  #norm(name: string, input: string): string {
    const b = this.#build;
    const x = this.#gpt2
      ? b.node("Sub", `${name}.centered`, [input, this.#mean(`${name}.center`, input)])
      : input;
    const squares = b.node("Mul", `${name}.squares`, [x, x]);
    const mean = this.#mean(`${name}.mean`, squares);
    const root = b.node("Sqrt", `${name}.root`, [b.node("Add", `${name}.sum`, [mean, "epsilon"])]);
    const weight = this.#weight(`${name}.weight`, [this.#spec.n_embd], false);
    const scaled = b.node("Mul", `${name}.scaled`, [b.node("Div", `${name}.normed`, [x, root]), weight]);
    return this.#withBias(name, this.#spec.n_embd, scaled);
  }

  /** Of the last axis, which stays with length 1. */
  #mean(name: string, x: string): string {
    return this.#build.node("ReduceMean", name, [x], { axes: { ints: [-1] }, keepdims: { int: 1 } });
  }

  #withBias(name: string, size: number, x: string): string {
    if (!this.#gpt2) return x;
    return this.#build.node("Add", `${name}.biased`, [x, this.#weight(`${name}.bias`, [size], false)]);
  }

  #linear(name: string, shape: readonly [number, number], x: string): string {
    const weight = this.#weight(`${name}.weight`, shape, true);
    return this.#withBias(name, shape[0], this.#build.node("MatMul", `${name}.product`, [x, weight]));
  }

  /** A weight as f32; with `turned`, [out, in] is stored as [in, out], as MatMul takes it. Vectors are always stored as f32. */
  #weight(name: string, shape: readonly number[], turned: boolean): string {
    const dtype = shape.length === 1 ? "f32" : this.#dtype;
    const count = shape.reduce((product, size) => product * size, 1);
    const source = this.#source;
    const stored = this.#build.tensor({
      name,
      element: dtype === "f16" ? "float16" : "float",
      shape: turned ? shape.toReversed() : shape,
      data: {
        bytes: dtypeBytes(dtype, count),
        read: async () => {
          const values = await source.read(name);
          return encodeValues(dtype, turned ? turn(values, shape[0]!, shape[1]!) : values, name);
        },
      },
    });
    if (dtype === "f32") return stored;
    return this.#build.node("Cast", `${name}.f32`, [stored], { to: { int: 1 } });
  }
}
