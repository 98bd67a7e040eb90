// Opens tfjs in a Deno process: its wasm backend, one thread, and the gradients that its package for node leaves out.
// Not for tabs (engine_tab.ts), where the bundler does all of this.
import { registerHooks } from "node:module";
import { wasmBackend } from "../peer/engine/tfjs_backend.ts";

/** A file of tfjs-core named as a bundler would find it: relative, without its ending. */
const WITHOUT_ENDING = /^\.\.?\/(?!.*\.js$)/;

/** Makes "wasm" a backend that tf.setBackend finds, and variableGrads possible. Can be called again. */
export async function openTfjsInDeno(): Promise<void> {
  await registerGradients();
  await wasmBackend();
}

/** They are plain modules, but import each other without file endings, which only bundlers resolve. */
async function registerGradients(): Promise<void> {
  const hooks = registerHooks({
    resolve(specifier, context, next) {
      const within = context.parentURL?.includes("/tfjs-core/dist/") ?? false;
      return next(within && WITHOUT_ENDING.test(specifier) ? `${specifier}.js` : specifier, context);
    },
  });
  try {
    await import("@tensorflow/tfjs-core/dist/register_all_gradients.js");
  } finally {
    hooks.deregister();
  }
}
