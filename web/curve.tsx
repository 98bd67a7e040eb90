// The loss curve: a plot for the eye, the same in words and as a table for everyone. The plotting library is
// loaded when the first curve appears, so that the first screen stays small.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { useEffect, useRef, useState } from "preact/hooks";
import type { CurvePlot } from "./curve_plot.ts";
import type { CurveView } from "./view_model_curve.ts";

export function Curve({ curve, title }: { curve: CurveView; title: string }) {
  return (
    <section class="panel curve" aria-labelledby="curve-title">
      <h2 id="curve-title">{title}</h2>
      <p class="curve-words">{curve.summary}</p>
      {curve.columns[0].length > 0 && <Plot curve={curve} />}
      {curve.rows.length > 0 && <CurveTable curve={curve} />}
    </section>
  );
}

function Plot({ curve }: { curve: CurveView }) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<CurvePlot | null>(null);
  const newest = useRef(curve);
  newest.current = curve;
  const [failed, setFailed] = useState(false);
  useEffect(function create() {
    let gone = false;
    void import("./curve_plot.ts").then(function draw({ CurvePlot }) {
      if (gone || !holder.current) return;
      plot.current = new CurvePlot(holder.current, newest.current.columns);
    }).catch(() => setFailed(true));
    return function destroy() {
      gone = true;
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.update(curve.columns));
  if (failed) return <p>This browser cannot draw the curve; its numbers are in the table.</p>;
  return (
    <figure>
      <div class="plot" ref={holder} aria-hidden="true"></div>
      <figcaption class="legend">
        <span class="key key-train">training, line</span>
        <span class="key key-val">validation, dots</span>
      </figcaption>
    </figure>
  );
}

function CurveTable({ curve }: { curve: CurveView }) {
  return (
    <details>
      <summary>The same as a table</summary>
      <table>
        <caption class="visually-hidden">Loss by step, newest first</caption>
        <thead>
          <tr>
            <th scope="col">Step</th>
            <th scope="col">Training</th>
            <th scope="col">Validation</th>
          </tr>
        </thead>
        <tbody>
          {curve.rows.map((row) => (
            <tr key={row.step}>
              <th scope="row">{row.step}</th>
              <td>{row.train}</td>
              <td>{row.val}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}
