// Draws a simulated step as text or SVG, one row per device. Pure: a trace in, a string out.
// Letters say what colours say, so neither drawing depends on colour.
import type { Simulation, TraceEntry } from "./simulate.ts";

/** Wider drawings are unreadable, and a trace of any length then yields a bounded string. */
export const TEXT_COLUMNS_MAX = 400;
/** Rectangles beyond this make browsers stutter; the drawing then ends with a note. */
export const SVG_BARS_MAX = 20_000;

const IDLE = ".";
/** What a cell of the text drawing shows; a fused backward is one letter like the others. */
const LETTERS: Record<TraceEntry["kind"], string> = { F: "F", B: "B", W: "W", BW: "X" };
const WORDS: Record<TraceEntry["kind"], string> = {
  F: "forward",
  B: "input gradient",
  W: "weight gradient",
  BW: "backward",
};

const OPPOSITE = "lower case: the opposite direction";

/** The letter of an operation; small for the opposite directions of bidirectional schedules. */
function letterOf({ kind, direction }: TraceEntry): string {
  return direction % 2 === 0 ? LETTERS[kind] : LETTERS[kind].toLowerCase();
}

function isBidirectional({ trace }: Simulation): boolean {
  return trace.some((entry) => entry.direction % 2 !== 0);
}

/** A row per device of letters (F, B, W, X = B and W fused, . = idle), then the legend with the scale. */
export function textGantt(simulation: Simulation, options: { columns?: number } = {}): string {
  const columns = Math.max(1, Math.min(TEXT_COLUMNS_MAX, options.columns ?? 100));
  const scale = columns / simulation.makespan;
  const digits = String(simulation.busy.length - 1).length;
  const rows = simulation.busy.map((_, device) => {
    const entries = simulation.trace.filter((entry) => entry.device === device);
    return `${String(device).padStart(digits)} |${textRow(entries, columns, scale)}|`;
  });
  const seconds = (1 / scale).toPrecision(3);
  const legend = `F forward, B input gradient, W weight gradient, X both, . idle; a column is ${seconds} s`;
  return [...rows, isBidirectional(simulation) ? `${legend}; ${OPPOSITE}` : legend].join("\n");
}

/** Each column shows the operation that covers its middle. */
function textRow(entries: readonly TraceEntry[], columns: number, scale: number): string {
  const cells = new Array<string>(columns).fill(IDLE);
  for (const entry of entries) {
    const from = Math.ceil(entry.start * scale - 0.5);
    for (let column = Math.max(0, from); column + 0.5 < entry.end * scale && column < columns; column++) {
      cells[column] = letterOf(entry);
    }
  }
  return cells.join("");
}

export interface SvgOptions {
  /** Read by screen readers and shown above the drawing. */
  title: string;
  /** Pixels. Default 960. */
  width?: number;
  /** Pixels per device. Default 24. */
  rowHeight?: number;
  /** Each bar says its times to whoever points at it. Default true; without it the drawing is half as long. */
  tooltips?: boolean;
}

/** Margins around the bars, in pixels: room for the title, the device numbers and the axis. */
const MARGIN = { left: 72, top: 32, right: 8, bottom: 28 };

/** Light and dark colours with at least 4.5:1 between text and bar. */
const STYLE = "<style>text{font:12px system-ui,sans-serif;fill:#1b1b1b}.F{fill:#9ecae9}.B{fill:#f5c084}" +
  ".W{fill:#a8d8a0}.BW{fill:#f2a7a7}rect{stroke:#555;stroke-width:.5}.l{fill:#1b1b1b}" +
  "@media (prefers-color-scheme:dark){text{fill:#eee}.l{fill:#1b1b1b}rect{stroke:#111}}</style>";

/** A stand-alone SVG document. Times are in seconds; each bar has a tooltip. */
export function svgGantt(simulation: Simulation, options: SvgOptions): string {
  const { title, width = 960, rowHeight = 24, tooltips = true } = options;
  const height = MARGIN.top + simulation.busy.length * rowHeight + MARGIN.bottom;
  const scale = (width - MARGIN.left - MARGIN.right) / simulation.makespan;
  const bars = simulation.trace.slice(0, SVG_BARS_MAX).map((entry) =>
    svgBar(entry, { scale, rowHeight, tooltips })
  );
  const labels = simulation.busy.map((_, device) =>
    `<text x="4" y="${px(MARGIN.top + (device + 0.65) * rowHeight)}">device ${device}</text>`
  );
  const cut = simulation.trace.length > SVG_BARS_MAX
    ? `; only the first ${SVG_BARS_MAX} operations are drawn`
    : "";
  const description = `${simulation.makespan.toPrecision(4)} s, ${
    (100 * simulation.bubble).toFixed(1)
  } % idle${cut}`;
  const plain = "F forward, B input gradient, W weight gradient, X both, with the micro-batch";
  const legend = isBidirectional(simulation) ? `${plain}; ${OPPOSITE}` : plain;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" role="img" width="${width}" height="${height}" ` +
    `viewBox="0 0 ${width} ${height}" aria-labelledby="t d">`,
    `<title id="t">${escapeXml(title)}</title><desc id="d">${description}</desc>`,
    STYLE,
    `<text x="4" y="18">${escapeXml(title)}: ${description}</text>`,
    ...labels,
    ...bars,
    `<text x="${MARGIN.left}" y="${height - 8}">${legend}</text>`,
    "</svg>",
  ].join("\n");
}

/** Room that a letter needs, and each digit after it; narrower bars have none. */
const LETTER_PX = 12;
const DIGIT_PX = 7;

function svgBar(entry: TraceEntry, at: { scale: number; rowHeight: number; tooltips: boolean }): string {
  const x = MARGIN.left + entry.start * at.scale;
  const y = MARGIN.top + entry.device * at.rowHeight;
  const width = (entry.end - entry.start) * at.scale;
  const box = `x="${px(x)}" y="${px(y + 1)}" width="${px(width)}" height="${px(at.rowHeight - 2)}"`;
  const bar = at.tooltips
    ? `<rect class="${entry.kind}" ${box}><title>${tipOf(entry)}</title></rect>`
    : `<rect class="${entry.kind}" ${box}/>`;
  if (width < LETTER_PX) return bar;
  const number = String(entry.microBatch);
  const label = letterOf(entry) + (width < LETTER_PX + DIGIT_PX * number.length ? "" : number);
  return `${bar}<text class="l" x="${px(x + 2)}" y="${px(y + 0.65 * at.rowHeight)}">${label}</text>`;
}

function tipOf(entry: TraceEntry): string {
  return `${WORDS[entry.kind]} of micro-batch ${entry.microBatch}, stage ${entry.stage}, ` +
    `${entry.start.toPrecision(4)} to ${entry.end.toPrecision(4)} s`;
}

/** Hundredths of a pixel are enough, and keep the text short and equal everywhere. */
function px(value: number): string {
  return String(Math.round(value * 100) / 100);
}

function escapeXml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll(
    '"',
    "&quot;",
  );
}
