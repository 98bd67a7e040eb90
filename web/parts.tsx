// Pieces that both pages are made of: the frame with its live region, notices, facts, buttons, scroll regions.
// They draw what they are given and keep no state.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import type { ComponentChildren } from "preact";
import type { Tone } from "./view_model_notice.ts";
import type { Fact } from "./view_model_tab.ts";

const FISH = "M21 6 C17 .6 10 .6 5.5 4.8 L0 1.8 L1.4 6 L0 10.2 L5.5 7.2 C10 11.4 17 11.4 21 6Z";

/** One fish of the shoal, heading the way the activations go; decoration only. */
export function Fish({ className = "" }: { className?: string }) {
  return (
    <svg class={`fish ${className}`} viewBox="0 0 21 12" aria-hidden="true" focusable="false">
      <path d={FISH} />
    </svg>
  );
}

interface FrameProps {
  wide: boolean;
  announce: string;
  /** Shows the announcement to the eye as well: the outcome of an order. */
  toast?: boolean;
  children: ComponentChildren;
}

/** The page round a screen; the only live region of the page is here, so that it outlives every screen. */
export function Frame({ wide, announce, toast = false, children }: FrameProps) {
  return (
    <div class={wide ? "page wide" : "page narrow"}>
      <header class="masthead">
        <p class="wordmark">
          <span class="mark" aria-hidden="true">
            <Fish />
            <Fish />
            <Fish />
          </span>
          Shoal
        </p>
      </header>
      <main id="main">{children}</main>
      <p class={toast ? "toast" : "visually-hidden"} role="status" aria-live="polite">{announce}</p>
    </div>
  );
}

const SHAPES: Record<Tone, string> = {
  good: "M3 8.5 L6.5 12 L13 4.5",
  info: "M8 7 V12.5 M8 3.5 V4.6",
  warn: "M8 3 V9 M8 11.4 V12.6",
  bad: "M4 4 L12 12 M12 4 L4 12",
};

/** A shape for each tone, so that colour never stands alone; the words beside it carry the meaning. */
export function ToneIcon({ tone }: { tone: Tone }) {
  return (
    <svg class={`tone tone-${tone}`} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={SHAPES[tone]} />
    </svg>
  );
}

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <span class={`badge badge-${tone}`}>
      <ToneIcon tone={tone} />
      {children}
    </span>
  );
}

interface NoticeProps {
  notice: { tone: Tone; title: string; what: string; remedy: string; button: string | null };
  onButton: () => void;
  children?: ComponentChildren;
}

export function NoticeScreen({ notice, onButton, children }: NoticeProps) {
  return (
    <section class={`notice notice-${notice.tone}`}>
      <div class="notice-head">
        <ToneIcon tone={notice.tone} />
        <h1>{notice.title}</h1>
      </div>
      <p class="lead">{notice.what}</p>
      <p>{notice.remedy}</p>
      {children}
      {notice.button && (
        <p class="actions">
          <button type="button" class="primary" onClick={onButton}>{notice.button}</button>
        </p>
      )}
    </section>
  );
}

export function LoadingScreen({ title }: { title: string }) {
  return (
    <section class="loading" aria-busy="true">
      <span class="swim" aria-hidden="true">
        <Fish />
        <Fish />
        <Fish />
      </span>
      <h1>{title}</h1>
    </section>
  );
}

export function Facts({ facts, className = "" }: { facts: Fact[]; className?: string }) {
  if (facts.length === 0) return null;
  return (
    <dl class={`facts ${className}`}>
      {facts.map((fact) => (
        <div key={fact.label}>
          <dt>{fact.label}</dt>
          <dd>{fact.value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Progress as a ruler: a tick for each tenth. The words beside it say the same. */
export function Ruler({ progress, note = "" }: {
  progress: { value: number; max: number; text: string };
  note?: string;
}) {
  return (
    <div class="ruler">
      <p class="ruler-text">
        <strong>{progress.text}</strong>
        {note && <span>{note}</span>}
      </p>
      <progress value={progress.value} max={progress.max} aria-label={progress.text}></progress>
      <div class="ticks" aria-hidden="true"></div>
    </div>
  );
}

/** Text of the model; long lines wrap, long texts scroll, and the keyboard can scroll them too. */
export function Sample({ sample, level = "h2" }: {
  sample: { title: string; text: string };
  level?: "h2" | "h3";
}) {
  const Heading = level;
  return (
    <section class="panel sample">
      <Heading id="sample-title">{sample.title}</Heading>
      <blockquote tabIndex={0} role="region" aria-labelledby="sample-title">{sample.text}</blockquote>
    </section>
  );
}

/** A part wider than the page scrolls by itself, reachable by keyboard. */
export function ScrollRegion({ label, children }: { label: string; children: ComponentChildren }) {
  return <div class="scroll" role="region" aria-label={label} tabIndex={0}>{children}</div>;
}
