// An ONNX model as protobuf pieces: nodes, tensors, inputs and outputs (onnx/onnx.proto, IR version 8). Pure.
// Not what is computed (onnx.ts). Tensors lie inside the file while it stays below the format's limit, else in a second
// file beside it.
import { assert } from "../../peer/wire/errors.ts";
import { padding, type Piece, pieceBytes, totalBytes } from "./pieces.ts";
import { floatField, intField, lazyField, messageField, textField } from "./protobuf.ts";

/** Numbers of onnx.TensorProto.DataType. */
export const ELEMENT = { float: 1, int64: 7, bool: 9, float16: 10 } as const;
export type Element = keyof typeof ELEMENT;

/** A protobuf message may have 2 GiB; what is not weights needs far less than the rest. */
export const INLINE_BYTES_MAX = 1_900_000_000;
/** So that a reader can map a tensor of the second file into memory. */
const EXTERNAL_ALIGNMENT = 4096;

const IR_VERSION = 8;
/** Of all the operators used here, with axes as attributes where later versions take tensors. */
const OPSET_VERSION = 17;
const EXTERNAL = 1;
const ATTRIBUTE_TYPE = { float: 1, int: 2, ints: 7 } as const;

/** A dimension is a number, or a name for one that the caller chooses. */
export type Shape = readonly (number | string)[];

export interface GraphTensor {
  name: string;
  element: Element;
  shape: readonly number[];
  data: Piece;
}

type Attribute = { int: number } | { float: number } | { ints: readonly number[] };

/** Collects a graph; every value has a unique name, given by the node that makes it. */
export class GraphBuilder {
  readonly #nodes: Uint8Array[] = [];
  readonly #inputs: Uint8Array[] = [];
  readonly #outputs: Uint8Array[] = [];
  readonly #tensors: GraphTensor[] = [];
  readonly #names = new Set<string>();

  input(name: string, element: Element, shape: Shape): string {
    this.#inputs.push(valueInfo(11, { name, element, shape }));
    return this.#claim(name);
  }

  /** Declares a value that a node has made as an output. */
  output(name: string, element: Element, shape: Shape): void {
    assert(this.#names.has(name), `output ${name} is made by a node`);
    this.#outputs.push(valueInfo(12, { name, element, shape }));
  }

  tensor(tensor: GraphTensor): string {
    this.#tensors.push(tensor);
    return this.#claim(tensor.name);
  }

  /** A small constant of integers: axes, shapes, indices. */
  ints(name: string, values: readonly number[], shape: readonly number[] = [values.length]): string {
    const data = new Uint8Array(BigInt64Array.from(values, BigInt).buffer);
    return this.tensor({ name, element: "int64", shape, data });
  }

  floats(name: string, values: readonly number[], shape: readonly number[] = []): string {
    return this.tensor({
      name,
      element: "float",
      shape,
      data: new Uint8Array(Float32Array.from(values).buffer),
    });
  }

  /** A node with one output; returns the output's name, which is also the node's. */
  node(
    type: string,
    name: string,
    inputs: readonly string[],
    attributes: Record<string, Attribute> = {},
  ): string {
    return this.nodes(type, [name], inputs, attributes)[0]!;
  }

  nodes(
    type: string,
    outputs: readonly string[],
    inputs: readonly string[],
    // deno-lint-ignore default-param-last
    attributes: Record<string, Attribute> = {},
  ): readonly string[] {
    for (const input of inputs) assert(this.#names.has(input), `${outputs[0]} has an input ${input}`);
    this.#nodes.push(messageField(1, [
      ...inputs.map((input) => textField(1, input)),
      ...outputs.map((output) => textField(2, output)),
      textField(3, outputs[0]!),
      textField(4, type),
      ...Object.entries(attributes).map(([key, value]) => attributeField(key, value)),
    ]));
    return outputs.map((output) => this.#claim(output));
  }

  /**
   * The model, and its second file if the weights exceed `inlineBytesMax`.
   * @param external Name of the second file, which lies in the same folder.
   */
  build(
    about: ModelAbout,
    { external, inlineBytesMax = INLINE_BYTES_MAX }: { external: string; inlineBytesMax?: number },
  ): { model: Piece[]; external: Piece[] | null } {
    const weights = this.#tensors.reduce((sum, { data }) => sum + pieceBytes(data), 0);
    const outside: Piece[] | null = weights > inlineBytesMax ? [] : null;
    const initializers = this.#tensors.flatMap((tensor) =>
      outside !== null && !(tensor.data instanceof Uint8Array)
        ? [externalTensor(tensor, { file: external, pieces: outside })]
        : lazyField(5, [...tensorHead(tensor), ...lazyField(9, [tensor.data])])
    );
    const graph = [
      ...this.#nodes,
      textField(2, about.name),
      ...initializers,
      ...this.#inputs,
      ...this.#outputs,
    ];
    return { model: [...modelHead(about), ...lazyField(7, graph)], external: outside };
  }

  #claim(name: string): string {
    assert(!this.#names.has(name), `the name ${name} is free`);
    this.#names.add(name);
    return name;
  }
}

export interface ModelAbout {
  name: string;
  producer: string;
  description: string;
  metadata: Readonly<Record<string, string>>;
}

function modelHead({ producer, description, metadata }: ModelAbout): Uint8Array[] {
  return [
    intField(1, IR_VERSION),
    textField(2, producer),
    textField(6, description),
    messageField(8, [textField(1, ""), intField(2, OPSET_VERSION)]),
    ...Object.entries(metadata).map(([key, value]) =>
      messageField(14, [textField(1, key), textField(2, value)])
    ),
  ];
}

function tensorHead({ name, element, shape }: GraphTensor): Uint8Array[] {
  return [...shape.map((size) => intField(1, size)), intField(2, ELEMENT[element]), textField(8, name)];
}

/** A tensor that says where its bytes lie; adds them to the second file. */
function externalTensor(
  tensor: GraphTensor,
  { file, pieces }: { file: string; pieces: Piece[] },
): Uint8Array {
  pieces.push(padding(totalBytes(pieces), EXTERNAL_ALIGNMENT));
  const place = {
    location: file,
    offset: String(totalBytes(pieces)),
    length: String(pieceBytes(tensor.data)),
  };
  pieces.push(tensor.data);
  const entries = Object.entries(place).map(([key, value]) =>
    messageField(13, [textField(1, key), textField(2, value)])
  );
  return messageField(5, [...tensorHead(tensor), ...entries, intField(14, EXTERNAL)]);
}

function attributeField(name: string, value: Attribute): Uint8Array {
  if ("int" in value) {
    return messageField(5, [textField(1, name), intField(3, value.int), intField(20, ATTRIBUTE_TYPE.int)]);
  }
  if ("float" in value) {
    return messageField(5, [
      textField(1, name),
      floatField(2, value.float),
      intField(20, ATTRIBUTE_TYPE.float),
    ]);
  }
  const ints = value.ints.map((int) => intField(8, int));
  return messageField(5, [textField(1, name), ...ints, intField(20, ATTRIBUTE_TYPE.ints)]);
}

function valueInfo(field: number, value: { name: string; element: Element; shape: Shape }): Uint8Array {
  const dimensions = value.shape.map((size) =>
    messageField(1, [typeof size === "number" ? intField(1, size) : textField(2, size)])
  );
  const tensorType = messageField(1, [intField(1, ELEMENT[value.element]), messageField(2, dimensions)]);
  return messageField(field, [textField(1, value.name), messageField(2, [tensorType])]);
}
