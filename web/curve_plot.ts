// The picture of a loss curve on a canvas. Holds the plotting library; knows no page state.
// Colours come from the style sheet and are read again whenever the colour scheme changes.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { CurveView } from "./view_model_curve.ts";

const HEIGHT_PX = 240;
/** Round labels every so many pixels; fewer collide at 360 px. */
const TICK_SPACE_PX = 64;

type Columns = CurveView["columns"];

/** One plot inside `holder`; call destroy() when the holder goes. */
export class CurvePlot {
  readonly #holder: HTMLElement;
  readonly #resize: ResizeObserver;
  readonly #scheme = matchMedia("(prefers-color-scheme: dark)");
  #columns: Columns;
  #plot: uPlot;

  constructor(holder: HTMLElement, columns: Columns) {
    this.#holder = holder;
    this.#columns = columns;
    this.#plot = this.#draw();
    this.#resize = new ResizeObserver(() => this.#fit());
    this.#resize.observe(holder);
    this.#scheme.addEventListener("change", this.#recolour);
  }

  update(columns: Columns): void {
    this.#columns = columns;
    this.#plot.setData(columns);
  }

  destroy(): void {
    this.#scheme.removeEventListener("change", this.#recolour);
    this.#resize.disconnect();
    this.#plot.destroy();
  }

  #draw(): uPlot {
    return new uPlot(optionsFor(this.#holder), this.#columns, this.#holder);
  }

  #fit(): void {
    const width = this.#holder.clientWidth;
    if (width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT_PX });
  }

  readonly #recolour = (): void => {
    this.#plot.destroy();
    this.#plot = this.#draw();
  };
}

function optionsFor(holder: HTMLElement): uPlot.Options {
  const style = getComputedStyle(holder);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  return {
    width: holder.clientWidth,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: { show: false },
    padding: [12, 12, 0, 0],
    scales: { x: { time: false } },
    axes: [axis(colour, { space: TICK_SPACE_PX, size: 34 }), axis(colour, { space: 40, size: 46 })],
    series: [{}, {
      stroke: colour("--curve-train"),
      width: 1.75,
      spanGaps: true,
      points: { show: false },
    }, {
      stroke: colour("--curve-val"),
      width: 1.25,
      dash: [5, 4],
      spanGaps: true,
      points: { show: true, size: 7, fill: colour("--curve-val"), stroke: colour("--curve-val") },
    }],
  };
}

function axis(colour: (name: string) => string, options: { space: number; size: number }): uPlot.Axis {
  return {
    ...options,
    stroke: colour("--ink-soft"),
    font: `12px ${colour("--font-figures")}`,
    grid: { stroke: colour("--rule"), width: 1 },
    ticks: { stroke: colour("--rule"), width: 1, size: 5 },
  };
}
