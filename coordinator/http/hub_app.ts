// Who answers a request at a coordinator with several runs: a run under /r/<id>/, the runs page and its interface, or, at the root,
// the run that is alone, so that links from before there were several keep working. Routes only; a run's app answers for it.
import { Hono } from "hono";
import type { CorpusLibrary } from "../corpora/library.ts";
import { addCorporaRoutes } from "../corpora/routes.ts";
import type { Hub } from "../hub/hub.ts";
import type { Handler } from "../main.ts";
import { problem } from "./answers.ts";
import { hubRoutes, type HubRoutesOptions, isAdmin } from "./hub_routes.ts";
import { servePage } from "./pages.ts";

export interface HubAppOptions extends HubRoutesOptions {
  webRoot: string;
  library: CorpusLibrary;
}

const PAGES = { "/": "/runs.html", "/runs": "/runs.html" };

export function createHubApp(options: HubAppOptions): Handler {
  const app = new Hono();
  app.notFound((c) => problem(404, "usage", `there is nothing at ${c.req.method} ${c.req.path}`));
  app.use("*", async (c, next) => {
    await next();
    c.header("X-Content-Type-Options", "nosniff");
    c.header("Referrer-Policy", "no-referrer");
  });
  app.route("/", hubRoutes(options));
  addCorporaRoutes(app, { library: options.library, isAdmin: (request) => isAdmin(options, request) });
  app.get("*", (c) => servePage(options.webRoot, c.req.path, { named: PAGES }));
  return (request) => answer(options.hub, request, (own) => app.fetch(own));
}

function answer(hub: Hub, request: Request, own: Handler): Response | Promise<Response> {
  const { pathname, search } = new URL(request.url);
  const [, id, rest] = /^\/r\/([^/]+)(\/.*)?$/.exec(pathname) ?? [];
  if (id === undefined) return isOwn(pathname) ? own(request) : (hub.only?.fetch ?? own)(request);
  const run = hub.run(id);
  if (run === null) {
    return problem(404, "usage", `no run ${JSON.stringify(id.slice(0, 80))} is open here; ask its organizer`);
  }
  // Browsers keep what follows the #; without the slash the page would look for its run one folder too high.
  if (rest === undefined) {
    return new Response(null, { status: 308, headers: { location: `/r/${id}/${search}` } });
  }
  return run.fetch(request);
}

/** What is the coordinator's own also while one run answers at the root. */
function isOwn(pathname: string): boolean {
  return pathname === "/runs" || pathname.startsWith("/api/hub/") || pathname.startsWith("/api/corpora");
}
