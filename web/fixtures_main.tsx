// The page of the fixtures build: draws the state named in the address after "?fixture=" or "#", or a list of all states.
// Built only in mode "fixtures". Another name after "#" draws that state without loading anything, into an empty page.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { render } from "preact";
import { fixtures } from "./fixtures.ts";
import { Drawn, titleOf } from "./fixtures_pages.tsx";

const root = document.getElementById("app") as HTMLElement;

function Index() {
  return (
    <main class="page narrow">
      <h1>Every state of the pages</h1>
      <ul>
        {fixtures.map(({ name }) => (
          <li key={name}>
            <a href={`#${name}`}>{name}</a>
          </li>
        ))}
      </ul>
    </main>
  );
}

/** Nothing of the state before may be left: neither what its reader opened nor what they pressed. */
function draw(): void {
  const wanted = location.hash.slice(1) || new URLSearchParams(location.search).get("fixture");
  const fixture = fixtures.find(({ name }) => name === wanted);
  render(null, root);
  delete document.documentElement.dataset["pressed"];
  document.title = fixture ? titleOf(fixture) : "Every state of the pages";
  render(fixture ? <Drawn fixture={fixture} /> : <Index />, root);
  scrollTo(0, 0);
  document.documentElement.dataset["drawn"] = fixture?.name ?? "";
}

addEventListener("hashchange", draw);
draw();
