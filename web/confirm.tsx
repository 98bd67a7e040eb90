// A button whose action asks first, in the browser's own modal dialog (focus trap and Escape come with it).
// The dialog exists only while it is open, so a list of such buttons costs nothing.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useSignal } from "@preact/signals";
import { useEffect, useId, useRef } from "preact/hooks";

export interface ConfirmButtonProps {
  label: string;
  /** Name for assistive technology where the label alone is ambiguous; must contain the label. */
  describedLabel?: string;
  title: string;
  text: string;
  confirm: string;
  /** Asks for a few words too; they are handed on. */
  field?: string;
  /** Asks for one of these too; the first is taken unless another is. */
  choice?: { label: string; options: { value: string; text: string }[] };
  onConfirm: (words: string, chosen: string) => void;
}

export function ConfirmButton(props: ConfirmButtonProps) {
  const open = useSignal(false);
  return (
    <>
      <button type="button" aria-label={props.describedLabel} onClick={() => (open.value = true)}>
        {props.label}
      </button>
      {open.value && <ConfirmDialog {...props} onClose={() => (open.value = false)} />}
    </>
  );
}

function ConfirmDialog(props: ConfirmButtonProps & { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const words = useSignal("");
  const chosen = useSignal(props.choice?.options[0]?.value ?? "");
  useEffect(() => dialog.current?.showModal(), []);
  function confirm(): void {
    dialog.current?.close();
    props.onConfirm(words.value.trim(), chosen.value);
  }
  return (
    <dialog
      ref={dialog}
      aria-labelledby={`${id}-title`}
      aria-describedby={`${id}-text`}
      onClose={props.onClose}
    >
      <h2 id={`${id}-title`}>{props.title}</h2>
      <p id={`${id}-text`}>{props.text}</p>
      {props.field !== undefined && (
        <label class="asked">
          {props.field}
          <input
            value={words.value}
            maxLength={200}
            autocomplete="off"
            onInput={(event) => (words.value = event.currentTarget.value)}
          />
        </label>
      )}
      {props.choice !== undefined && (
        <label class="asked">
          {props.choice.label}
          <select value={chosen.value} onChange={(event) => (chosen.value = event.currentTarget.value)}>
            {props.choice.options.map((it) => <option key={it.value} value={it.value}>{it.text}</option>)}
          </select>
        </label>
      )}
      <p class="actions">
        <button type="button" onClick={() => dialog.current?.close()}>Keep going</button>
        <button type="button" class="danger" onClick={confirm}>{props.confirm}</button>
      </p>
    </dialog>
  );
}
