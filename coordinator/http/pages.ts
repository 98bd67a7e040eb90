// The built pages as the coordinator serves them: each file with its type, its policy and how long it may be kept. Serves only
// what the build has put into the folder; what the pages ask for is the routes' matter.
import { extname, join, normalize, sep } from "node:path";
import { problem } from "./answers.ts";

const TYPES: Record<string, string> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
  ".json": "application/json",
  ".webmanifest": "application/manifest+json",
  ".txt": "text/plain; charset=utf-8",
  ".png": "image/png",
  ".ico": "image/x-icon",
  ".wasm": "application/wasm",
};

/** Pages load nothing from elsewhere, run no inline script, and talk to this server alone, but for what a run names. */
const CSP = "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; " +
  "img-src 'self' data:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** A worker has the policy of its own script: it alone may compile WebAssembly, which an engine without WebGPU is. */
const SCRIPT_CSP = CSP.replace("script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'");

export interface PageOptions {
  /** Addresses that stand for a page, such as "/admin" for "/admin.html". */
  named: Readonly<Record<string, string>>;
  /** Origins that a tab's peer may fetch from besides this server; default none. */
  connect?: readonly string[];
}

export async function servePage(
  webRoot: string,
  pathname: string,
  { named, connect = [] }: PageOptions,
): Promise<Response> {
  const wanted = Object.hasOwn(named, pathname) ? named[pathname]! : pathname;
  const path = normalize(join(webRoot, wanted));
  const type = TYPES[extname(path)];
  const root = normalize(webRoot + sep);
  if (!path.startsWith(root) || type === undefined) {
    return problem(404, "usage", `there is nothing at ${pathname}`);
  }
  try {
    const cache = wanted.startsWith("/assets/") ? "public, max-age=31536000, immutable" : "no-cache";
    const own = extname(path) === ".js" ? SCRIPT_CSP : CSP;
    const policy = own.replace("connect-src 'self'", ["connect-src 'self'", ...connect].join(" "));
    const headers = { "content-type": type, "content-security-policy": policy, "cache-control": cache };
    return new Response(await Deno.readFile(path), { headers });
  } catch {
    return problem(404, "usage", `there is nothing at ${pathname}`);
  }
}
