// Argument parsing: what is refused, with which words, and what comes out.
import assert from "node:assert/strict";
import { ShoalError } from "../../peer/wire/errors.ts";
import {
  engineFlag,
  folderName,
  integerFlag,
  limitFlags,
  numberFlag,
  parseVerb,
  positional,
  requiredFlag,
  verbNamed,
} from "./options.ts";

function refusal(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    assert.ok(error instanceof ShoalError && error.code === "usage", String(error));
    return error.message;
  }
  return assert.fail("nothing was refused");
}

Deno.test("flags and configuration keys come apart, typed", () => {
  const args = [
    "--tabs",
    "2",
    "--n_layer=6",
    "--tie_word_embeddings=true",
    "--learning_rate",
    "1e-3",
    "--json",
  ];
  const options = parseVerb(verbNamed("demo"), args);
  assert.deepEqual({ ...options.flags }, { tabs: "2", json: "true" });
  assert.deepEqual({ ...options.config }, { n_layer: 6, tie_word_embeddings: true, learning_rate: 1e-3 });
});

Deno.test("configuration keys may be written as nanoGPT has them, without dashes, wherever they stand", () => {
  const args = ["n_layer=6", "--name", "max_iters=3", "--keep", "learning_rate=1e-3", "tabs=0", "--", "a=b"];
  const { flags, config, positionals } = parseVerb(verbNamed("demo"), args);
  assert.deepEqual({ ...flags }, { name: "max_iters=3", keep: "true", tabs: "0" });
  assert.deepEqual({ ...config }, { n_layer: 6, learning_rate: 1e-3 });
  assert.deepEqual(positionals, ["a=b"]);
  const resumed = parseVerb(verbNamed("resume"), ["./runs/a=b", "max_iters=9"]);
  assert.deepEqual([resumed.positionals, { ...resumed.config }], [["./runs/a=b"], { max_iters: 9 }]);
  assert.match(refusal(() => parseVerb(verbNamed("run"), ["n_layers=4"])), /"--n_layers".*mean "--n_layer"/);
  assert.deepEqual(parseVerb(verbNamed("corpus"), ["add", "a=b.txt"]).positionals, ["add", "a=b.txt"]);
});

Deno.test("a flag that is given several times keeps its last value, and all of them", () => {
  const { flags, repeated } = parseVerb(verbNamed("generate"), ["--stop", "a", "--stop=b", "--seed", "1"]);
  assert.deepEqual([flags.stop, repeated?.stop, repeated?.seed], ["b", ["a", "b"], ["1"]]);
});

Deno.test("an unknown flag or key names the nearest known one", () => {
  assert.match(refusal(() => parseVerb(verbNamed("demo"), ["--n_layers=4"])), /--n_layers.*--n_layer"/);
  assert.match(refusal(() => parseVerb(verbNamed("demo"), ["--out-dir=x"])), /did you mean "--out_dir"/);
  assert.match(refusal(() => parseVerb(verbNamed("peer"), ["--jion", "x"])), /did you mean "--join"/);
  assert.match(refusal(() => parseVerb(verbNamed("peer"), ["-q"])), /unknown flag "-q"/);
});

Deno.test("configuration keys belong to the verbs that configure a run", () => {
  assert.match(refusal(() => parseVerb(verbNamed("peer"), ["--n_layer=4"])), /unknown flag/);
});

Deno.test("a missing value and a value for a switch are refused", () => {
  refusal(() => parseVerb(verbNamed("peer"), ["--join"]));
  refusal(() => parseVerb(verbNamed("peer"), ["--json=yes"]));
});

Deno.test("numbers outside their bounds are refused with value and bounds", () => {
  const bounds = { absent: 2, min: 0, max: 8 };
  const with_ = (text: string) => parseVerb(verbNamed("demo"), [`--tabs=${text}`]);
  assert.equal(integerFlag(parseVerb(verbNamed("demo"), []), "tabs", bounds), 2);
  assert.equal(integerFlag(with_("8"), "tabs", bounds), 8);
  for (const text of ["9", "-1", "1.5", "two", ""]) {
    assert.match(refusal(() => integerFlag(with_(text), "tabs", bounds)), new RegExp(`"${text}".*0 to 8`));
  }
  assert.equal(numberFlag(with_("1.5"), "tabs", bounds), 1.5);
});

Deno.test("required flags and surplus arguments are named", () => {
  assert.match(refusal(() => requiredFlag(parseVerb(verbNamed("peer"), []), "join")), /--join is missing/);
  const options = parseVerb(verbNamed("resume"), ["runs/a", "b"]);
  assert.match(refusal(() => positional(options, 1)), /"b" is not expected/);
  assert.equal(positional(parseVerb(verbNamed("resume"), ["runs/a"]), 1), "runs/a");
});

Deno.test("an unknown verb names the nearest", () => {
  assert.match(refusal(() => verbNamed("resum")), /did you mean "resume"/);
});

Deno.test("folder names stay inside their parent", () => {
  assert.equal(folderName("Moby Dick, 2nd try!"), "moby-dick-2nd-try");
  assert.equal(folderName("../../etc"), "etc");
  assert.equal(folderName("  "), "run");
});

Deno.test("an engine is known by its name, and a slip names the nearest", () => {
  const engine = (text: string) => engineFlag(parseVerb(verbNamed("peer"), [`--engine=${text}`]));
  assert.equal(engineFlag(parseVerb(verbNamed("demo"), [])), undefined);
  for (const name of ["auto", "wgsl", "tfjs-wasm", "tfjs-webgpu", "cpu"]) assert.equal(engine(name), name);
  assert.match(refusal(() => engine("tfjs-wams")), /unknown engine "tfjs-wams" \(did you mean "tfjs-wasm"/);
  assert.match(refusal(() => engine("abacus")), /use auto, wgsl, tfjs-wasm, tfjs-webgpu, cpu/);
});

Deno.test("a peer's limits are flags in people's units, with bounds", () => {
  const limits = (...args: string[]) => limitFlags(parseVerb(verbNamed("peer"), args));
  const none = { duty: 1, memoryBytes: null, upBytesPerS: null, downBytesPerS: null };
  assert.deepEqual(limits(), { limits: none });
  assert.deepEqual(limits("--duty=40", "--memory=800", "--up_rate=500", "--down_rate=2000", "--daily=1500"), {
    limits: { duty: 0.4, memoryBytes: 8e8, upBytesPerS: 5e5, downBytesPerS: 2e6 },
    dayBytes: 1.5e9,
  });
  assert.match(refusal(() => limits("--duty=5")), /10 to 100/);
  assert.match(refusal(() => limits("--up_rate=1")), /50 to/);
});
