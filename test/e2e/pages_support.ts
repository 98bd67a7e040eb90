// What the page tests need round the pages: a build in memory, a server with a strict content policy, a browser.
// No assertions here. What it opens is closed by its disposer.
import { fileURLToPath } from "node:url";
import { type Browser, chromium } from "playwright";
import { build } from "vite";

const CONFIG_FILE = fileURLToPath(new URL("../../vite.config.ts", import.meta.url));
/** Served as they are, beside what is built. */
const PUBLIC = fileURLToPath(new URL("../../web/public/", import.meta.url));

/** The strictest policy the pages must live with; the coordinator may allow more connections, never more scripts. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'";

/** Of scripts, which is that of the workers they are: WebAssembly beside the above. */
const WASM_POLICY = POLICY.replace("script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'");

const TYPES: Record<string, string> = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
  wasm: "application/wasm",
  webmanifest: "application/manifest+json",
  png: "image/png",
};

export interface Chunk {
  fileName: string;
  imports: string[];
  css: string[];
}

export interface Built {
  /** File name -> content. */
  files: Map<string, Uint8Array<ArrayBuffer>>;
  chunks: Chunk[];
  /** The page itself runs engines, which in the shipped pages only the worker does. */
  wasm?: boolean;
}

/**
 * Runs the project's own build without writing. The peer is no part of a page's first load, so it stays outside unless the
 * `whole` is asked for.
 */
export async function buildPages(
  mode: "fixtures" | "production",
  { whole = false }: { whole?: boolean } = {},
): Promise<Built> {
  const result = await build({
    configFile: CONFIG_FILE,
    mode,
    logLevel: "error",
    build: { write: false, rolldownOptions: { external: whole ? [] : [/peer\/browser\.ts$/] } },
  });
  if (!("output" in result)) throw new Error("vite gave more than one output");
  const built: Built = { files: new Map(), chunks: [] };
  for (const item of result.output) {
    const content = item.type === "chunk" ? item.code : item.source;
    built.files.set(
      item.fileName,
      typeof content === "string" ? new TextEncoder().encode(content) : content.slice(),
    );
    if (item.type !== "chunk") continue;
    const css = [...item.viteMetadata?.importedCss ?? []];
    built.chunks.push({ fileName: item.fileName, imports: item.imports, css });
  }
  for (const { name } of Deno.readDirSync(PUBLIC)) built.files.set(name, Deno.readFileSync(PUBLIC + name));
  return built;
}

/** Answers of the coordinator's interface; null = not a path of it. */
export type ApiHandler = (request: Request) => Response | Promise<Response> | null;

export interface Site extends AsyncDisposable {
  origin: string;
}

/** Serves built files on a free port, with `/` and `/admin` as the coordinator maps them. */
export function serveBuilt(built: Built, api: ApiHandler = () => null): Site {
  const server = Deno.serve({ port: 0, hostname: "localhost", onListen: () => {} }, function answer(request) {
    return api(request) ?? fileResponse(built, new URL(request.url).pathname);
  });
  return {
    origin: `http://localhost:${server.addr.port}`,
    [Symbol.asyncDispose]: () => server.shutdown(),
  };
}

function fileResponse(built: Built, pathname: string): Response {
  const path = pathname.slice(1);
  const name = path === "" ? "index.html" : built.files.has(path) ? path : `${path}.html`;
  const content = built.files.get(name);
  if (!content) return new Response("not found", { status: 404 });
  const type = TYPES[name.split(".").at(-1) ?? ""] ?? "application/octet-stream";
  const policy = built.wasm || name.endsWith(".js") ? WASM_POLICY : POLICY;
  return new Response(content, { headers: { "content-type": type, "content-security-policy": policy } });
}

/**
 * @param extra flags beside the usual ones, such as those that switch software WebGPU on
 * @param without flags that Playwright sets by itself and that are left out
 */
export async function openBrowser(extra: string[] = [], without: string[] = []): Promise<Browser> {
  return await chromium.launch({
    executablePath: chromiumPath(),
    ignoreDefaultArgs: without,
    args: [
      ...extra,
      "--no-sandbox",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
}

/** CHROMIUM_PATH, or the first known name on PATH. */
function chromiumPath(): string {
  const given = Deno.env.get("CHROMIUM_PATH");
  if (given) return given;
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    const { success, stdout } = new Deno.Command("which", { args: [name] }).outputSync();
    if (success) return new TextDecoder().decode(stdout).trim();
  }
  throw new Error("no Chromium found: install it or set CHROMIUM_PATH");
}
