// What runs inside a tab for browser_test.ts: our own modules, called from outside through one global, `suite`.
// No assertions and no expected values: it returns what happened, the test compares. Never part of the shipped pages.
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine, StageInput, StageOutput } from "../../peer/engine/engine.ts";
import { TunedEngines } from "../../peer/engine/tuned.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { runGoldenScenario } from "../../peer/exact/golden.ts";
import { type GpuDevice, openDevice } from "../../peer/gpu/device.ts";
import { kernelSpecs } from "../../peer/gpu/kernels/index.ts";
import { MATMUL_FAMILY, MATMUL_LAYOUTS, memberSpec } from "../../peer/gpu/kernels/matmul_family.ts";
import { canRun, checkShader, compileKernel } from "../../peer/gpu/pipeline.ts";
import type { TuneResult } from "../../peer/gpu/tune.ts";
import { tuneTools } from "../../peer/gpu/tune_device.ts";
import { PRODUCT_SLICES } from "../../peer/model/product_slices.ts";
import type { Link } from "../../peer/net/link.ts";
import { LINK_CASES, type LinkPair, runLinkCase, untilOpen } from "../../peer/net/link_suite.ts";
import { SimplePeerLink } from "../../peer/net/simple_peer.ts";
import { browserStack } from "../../peer/net/webrtc_browser.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { Encoded } from "../../peer/wire/run.ts";
import type { EngineName } from "../../peer/wire/status.ts";
import { type FrameNote, LinkEnd } from "./link_end.ts";

/** Kernels that software adapters are not given (attentionKernels, rmsnormKernels), and those whose tiles f32's plain stand for. */
const HARDWARE_ONLY =
  /_(flash|group)(_f16)?$|_shared_\d+x\d+_halves|_(rotary|swiglu|backward)_(shared_|\w+_halves$)/;
/** Pause between two looks at whether the second tab has loaded. */
const LOAD_POLL_MS = 20;

/** One micro-batch through one stage. */
export interface StageJob {
  build: StageBuild;
  params: Float32Array;
  input: StageInput;
  /** Null at the last stage. */
  gradient: Encoded | null;
  /** Exponent of the loss scale, with `dtype` f16. */
  lossScale?: number;
}

export interface StageResult extends StageOutput {
  engine: string;
  /** Of the stage's input; null at the first stage. */
  gradient: Encoded | null;
  weightGrad: Float32Array;
}

export interface KernelReport {
  adapter: string;
  software: boolean;
  compiled: string[];
  refused: string[];
}

let opening: Promise<GpuDevice> | undefined;
let second: Promise<TabSuite> | undefined;
let end: LinkEnd | undefined;

function device(): Promise<GpuDevice> {
  opening ??= openDevice({ provider: "builtin" });
  return opening;
}

async function compileKernels(): Promise<KernelReport> {
  const gpu = await device();
  const report: KernelReport = {
    adapter: gpu.adapterName,
    software: gpu.software,
    compiled: [],
    refused: [],
  };
  for (const spec of kernelSpecs) {
    try {
      // For graphics cards alone: a software adapter takes half a minute to build one and never gets it.
      if (HARDWARE_ONLY.test(spec.name)) await checkShader(gpu.device, spec);
      else await compileKernel(gpu.device, spec);
      report.compiled.push(spec.name);
    } catch (error) {
      report.refused.push(String(error));
    }
  }
  return report;
}

/** Every matrix product's kernel against the reference, in one pass and in slices: which were checked, and what is wrong. */
async function checkProducts(): Promise<{ checked: string[]; wrong: string[] }> {
  const gpu = await device();
  const tools = tuneTools(gpu);
  const report = { checked: [] as string[], wrong: [] as string[] };
  for (const { layout, shape, member, spec } of productKernels()) {
    if (!canRun(gpu.device, spec)) continue;
    for (const slices of layout === "tn" ? [1, PRODUCT_SLICES] : [1]) {
      const reason = await tools.check({ layout, shape, member, spec, slices });
      if (reason !== null) report.wrong.push(`${spec.name} in ${slices} slices: ${reason}`);
    }
    report.checked.push(spec.name);
  }
  return report;
}

function productKernels() {
  const shapes = [{ M: 4, N: 4, K: 4 }, { M: 3, N: 3, K: 3 }];
  return MATMUL_FAMILY.flatMap((member) =>
    MATMUL_LAYOUTS.flatMap((layout) =>
      shapes.flatMap((shape) => {
        const spec = memberSpec(member, layout, shape);
        return spec ? [{ layout, shape, member: member.name, spec }] : [];
      })
    )
  );
}

/** Tunes for a stage, which is not built, and says the result. */
async function tuneStage(build: StageBuild): Promise<TuneResult> {
  return await new TunedEngines(await device()).tune(build);
}

/** Compiles `wgsl` in the place of the first kernel's text; gives the error's code and message, or "compiled". */
async function compileText(wgsl: string): Promise<string> {
  const gpu = await device();
  try {
    await compileKernel(gpu.device, { ...kernelSpecs[0]!, name: `text of ${wgsl.length} characters`, wgsl });
    return "compiled";
  } catch (error) {
    return error instanceof ShoalError ? `${error.code}: ${error.message}` : String(error);
  }
}

async function createEngine(kind: EngineName, build: StageBuild): Promise<StageEngine> {
  if (kind === "tfjs-wasm" || kind === "tfjs-webgpu") {
    // As the worker does: a chunk of its own, which only this choice loads.
    const { createTfjsEngine } = await import("../../peer/engine/tfjs.ts");
    return await createTfjsEngine(build, { backend: kind === "tfjs-wasm" ? "wasm" : "webgpu" });
  }
  return kind === "cpu" ? createCpuEngine(build) : await createWgslEngine(await device(), build);
}

/** F, B and W of one micro-batch on a fresh engine. */
async function runStage(kind: EngineName, job: StageJob): Promise<StageResult> {
  const engine = await createEngine(kind, job.build);
  try {
    await engine.load(job.params);
    engine.scaleLoss?.(job.lossScale ?? 0);
    const output = await engine.forward(0, job.input);
    const gradient = await engine.backward(0, job.gradient);
    return { ...output, engine: engine.name, gradient, weightGrad: await engine.weightGrad(0) };
  } finally {
    engine.destroy();
  }
}

/** Runs one case of the acceptance suite between this tab and a second one, which it opens by itself once. */
async function linkCase(name: string): Promise<void> {
  const chosen = LINK_CASES.find((candidate) => candidate.name === name);
  if (chosen === undefined) throw new Error(`no case "${name}"`);
  second ??= openSecondTab();
  const other = await second;
  await runLinkCase(chosen, () => pairWith(other));
}

/** A tab that this one opened is in reach of its script, so the suite can hold both ends in one place. */
async function openSecondTab(): Promise<TabSuite> {
  const tab = open(location.href) as (Window & { suite?: TabSuite }) | null;
  if (tab === null) throw new Error("the browser refuses to open a second tab");
  while (tab.suite === undefined) await new Promise((resolve) => setTimeout(resolve, LOAD_POLL_MS));
  return tab.suite;
}

function createLink(initiator: boolean, onsignal: (data: string) => void): SimplePeerLink {
  return new SimplePeerLink({ remote: "other", initiator, iceServers: [], stack: browserStack, onsignal });
}

async function pairWith(other: TabSuite): Promise<LinkPair> {
  const links: { a: SimplePeerLink; b: SimplePeerLink } = {
    a: createLink(true, (data) => links.b.signal(data)),
    b: other.createLink(false, (data) => links.a.signal(data)),
  };
  const { a, b } = links;
  await Promise.all([untilOpen(a), untilOpen(b)]);
  return {
    a,
    b: adopted(b),
    inject: (bytes) => a.channel!.send(bytes),
    dispose: () => {
      a.close("test over");
      b.close("test over");
      return Promise.resolve();
    },
  };
}

/** The other tab's link as if it were of this tab: its ShoalError is another class, and the suite asks for ours. */
function adopted(link: Link): Link {
  return new Proxy(link, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== "function" || name === "onframe" || name === "onstate") return value;
      return (...args: unknown[]) => rethrowing(() => value.apply(target, args));
    },
    set: (target, name, value) => Reflect.set(target, name, value, target),
  });
}

function rethrowing(action: () => unknown): unknown {
  try {
    return action();
  } catch (error) {
    const { name, code, message } = error as ShoalError;
    throw name === "ShoalError" ? new ShoalError(code, message) : error;
  }
}

/** One end of a link whose other end the test holds; signals leave through the test's binding `carrySignal`. */
function openEnd(initiator: boolean): void {
  const { carrySignal } = globalThis as unknown as { carrySignal(data: string): void };
  end = new LinkEnd({ initiator, stack: browserStack, onsignal: (data) => carrySignal(data) });
}

function signal(data: string): void {
  end!.link.signal(data);
}

function exchange(sizes: readonly number[], salt: number): Promise<FrameNote[]> {
  return end!.exchange(sizes, salt);
}

const suite = {
  runGoldenScenario,
  compileKernels,
  compileText,
  checkProducts,
  tuneStage,
  runStage,
  linkCase,
  createLink,
  openEnd,
  signal,
  exchange,
};

export type TabSuite = typeof suite;

Object.assign(globalThis, { suite });
