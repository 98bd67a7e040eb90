// The place of "Try the model" on a page: a title and a button. What it opens is loaded with the first press, so that it is no
// part of a page's first load.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useSignal } from "@preact/signals";
import type { ComponentChildren, FunctionComponent } from "preact";
import type { GenerateSource } from "./generate_panel.tsx";
import { ToneIcon } from "./parts.tsx";

export function GenerateSlot(source: GenerateSource) {
  const panel = useSignal<FunctionComponent<GenerateSource> | null>(null);
  const state = useSignal<"closed" | "loading" | "failed">("closed");
  async function open(): Promise<void> {
    state.value = "loading";
    try {
      const { GeneratePanel } = await import("./generate_panel.tsx");
      panel.value = GeneratePanel;
    } catch {
      state.value = "failed";
    }
  }
  const Panel = panel.value;
  return (
    <TryPanel>
      {Panel === null
        ? (
          <p class="actions">
            <button type="button" disabled={state.value === "loading"} onClick={() => void open()}>
              Write a text with it
            </button>
          </p>
        )
        : <Panel {...source} />}
      {state.value === "failed" && (
        <p>
          <ToneIcon tone="warn" />{" "}
          This part of the page could not be loaded. Look whether you are online, and press again.
        </p>
      )}
    </TryPanel>
  );
}

export function TryPanel({ children }: { children: ComponentChildren }) {
  return (
    <section class="panel try" aria-labelledby="try-title">
      <h2 id="try-title">Try the model</h2>
      <p>
        Its newest checkpoint continues a text; while the run goes on, its computers can do it together, too.
      </p>
      {children}
    </section>
  );
}
