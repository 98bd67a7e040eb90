// Counts the dispatches and submits of everything in a process or tab, whichever library sends them.
// Only for benches: it replaces methods of WebGPU's own classes for as long as it counts, and puts them back.

export interface CommandCounts {
  dispatches: number;
  submits: number;
}

export interface CommandCounter extends Disposable {
  /** Null where the WebGPU implementation has no global classes (Dawn outside a browser). */
  counts: CommandCounts | null;
}

type Method = (this: unknown, ...args: unknown[]) => unknown;
type Methods = Record<string, Method>;

/** Counts until it is disposed of. Not twice at one time. */
export function countCommands(): CommandCounter {
  const pass = methodsOf("GPUComputePassEncoder");
  const queue = methodsOf("GPUQueue");
  if (pass === null || queue === null) return { counts: null, [Symbol.dispose]: () => {} };
  const counts = { dispatches: 0, submits: 0 };
  const restored = [
    onCall(pass, "dispatchWorkgroups", () => counts.dispatches++),
    onCall(pass, "dispatchWorkgroupsIndirect", () => counts.dispatches++),
    onCall(queue, "submit", () => counts.submits++),
  ];
  return {
    counts,
    [Symbol.dispose]: () => {
      for (const restore of restored) restore();
    },
  };
}

function methodsOf(name: string): Methods | null {
  const known = (globalThis as unknown as Record<string, { prototype: Methods } | undefined>)[name];
  return known?.prototype ?? null;
}

/** Calls `note` before each call of the method; returns what puts the method back. */
function onCall(methods: Methods, name: string, note: () => void): () => void {
  const original = methods[name]!;
  methods[name] = function (...args) {
    note();
    return Reflect.apply(original, this, args);
  };
  return () => {
    methods[name] = original;
  };
}
