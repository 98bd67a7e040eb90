// Browsers that the automation library cannot drive as their makers ship them: Firefox through WebDriver BiDi, WebKitGTK (the
// engine of Safari, without WebRTC and WebGPU) through WebDriver. One page each, and as much of the protocols as tests need.
import { PATIENCE_MS, startScreen, until } from "../support/screen.ts";

export interface OtherBrowser extends AsyncDisposable {
  /** Such as "153.8.0". */
  version: string;
  goto(url: string): Promise<void>;
  /** The value of an expression on the page; it must be plain text, a number or true or false. */
  value(expression: string): Promise<unknown>;
  /** A PNG of what the window shows. */
  screenshot(): Promise<Uint8Array>;
}

/** Loopback addresses in WebRTC, as Chromium's flag does it, and nothing that talks to anybody by itself. */
const FIREFOX_PREFERENCES = {
  "media.peerconnection.ice.loopback": true,
  "media.peerconnection.ice.obfuscate_host_addresses": false,
  "datareporting.policy.dataSubmissionEnabled": false,
  "app.update.enabled": false,
  "app.normandy.enabled": false,
  "browser.shell.checkDefaultBrowser": false,
  "network.captive-portal-service.enabled": false,
  "network.connectivity-service.enabled": false,
};

/** Characters of a browser's complaints that are looked through, and that an error tells. */
const COMPLAINTS_MAX = 1 << 16;
const COMPLAINT_CHARS = 500;

const WEBKIT_BROWSER = "webkit2gtk-4.1/MiniBrowser";
const WEBKIT_FOLDERS = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/libexec"];

/** @throws {Error} with what to install, where there is no Firefox */
export async function openFirefox(): Promise<OtherBrowser> {
  const profile = await Deno.makeTempDir({ prefix: "shoal-firefox-" });
  const lines = Object.entries(FIREFOX_PREFERENCES).map(([name, value]) => `user_pref("${name}", ${value});`);
  await Deno.writeTextFile(`${profile}/user.js`, lines.join("\n"));
  const args = ["--headless", "--no-remote", "--profile", profile, "--remote-debugging-port=0"];
  const process = start(["firefox-esr", "firefox"], args, {
    ...{ install: "apt-get install firefox-esr", stderr: "piped" },
  });
  const address = await said(process, /WebDriver BiDi listening on (ws:\S+)/);
  const bidi = await BidiSession.open(`${address}/session`);
  const { context } = await bidi.call("browsingContext.create", { type: "tab" }) as { context: string };
  return {
    version: bidi.version,
    goto: async (url) => void await bidi.call("browsingContext.navigate", { context, url, wait: "complete" }),
    value: async (expression) => {
      const params = { expression, target: { context }, awaitPromise: true, userActivation: true };
      const answer = await bidi.call("script.evaluate", params) as BidiValue;
      if (answer.type === "success") return answer.result.value;
      throw new Error(`${expression}: ${answer.exceptionDetails?.text}`);
    },
    screenshot: async () => {
      const shot = await bidi.call("browsingContext.captureScreenshot", { context }) as { data: string };
      return Uint8Array.fromBase64(shot.data);
    },
    async [Symbol.asyncDispose]() {
      bidi.close();
      await end(process);
      await Deno.remove(profile, { recursive: true });
    },
  };
}

interface BidiValue {
  type: "success" | "exception";
  result: { value: unknown };
  exceptionDetails?: { text: string };
}

interface BidiAnswer {
  id?: number;
  type: "success" | "error" | "event";
  result: unknown;
  message?: string;
}

/** Commands by number over one socket; events are not listened to. */
class BidiSession {
  version = "";
  readonly #socket: WebSocket;
  readonly #waiting = new Map<number, (answer: BidiAnswer) => void>();
  #next = 1;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.onmessage = ({ data }: MessageEvent<string>) => {
      const answer = JSON.parse(data) as BidiAnswer;
      this.#waiting.get(answer.id ?? 0)?.(answer);
      this.#waiting.delete(answer.id ?? 0);
    };
  }

  static async open(url: string): Promise<BidiSession> {
    const socket = new WebSocket(url);
    await new Promise((resolve, reject) => [socket.onopen, socket.onerror] = [resolve, reject]);
    const session = new BidiSession(socket);
    const begun = await session.call("session.new", { capabilities: {} });
    session.version = (begun as { capabilities: { browserVersion: string } }).capabilities.browserVersion;
    return session;
  }

  async call(method: string, params: Record<string, unknown>): Promise<unknown> {
    const id = this.#next++;
    const answered = new Promise<BidiAnswer>((resolve) => this.#waiting.set(id, resolve));
    this.#socket.send(JSON.stringify({ id, method, params }));
    const answer = await answered;
    if (answer.type === "success") return answer.result;
    throw new Error(`${method}: ${answer.message}`);
  }

  close(): void {
    this.#socket.close();
  }
}

/** @throws {Error} with what to install, where there is no WebKitGTK or no screen for it */
export async function openWebKit(): Promise<OtherBrowser> {
  const screen = await startScreen();
  const install = "apt-get install webkit2gtk-driver xvfb";
  const listener = Deno.listen({ port: 0, hostname: "127.0.0.1" });
  const { port } = listener.addr as Deno.NetAddr;
  listener.close();
  const process = start(["WebKitWebDriver"], [`--port=${port}`], {
    ...{ install, env: { DISPLAY: screen.display, LANG: "en_US.UTF-8" } },
  });
  const origin = `http://127.0.0.1:${port}`;
  await until("WebKitWebDriver", async () => (await call(origin, "GET", "/status")) !== null);
  const binary = WEBKIT_FOLDERS.map((folder) => `${folder}/${WEBKIT_BROWSER}`).find(exists);
  if (binary === undefined) throw new Error(`WebKitGTK was not found: ${install}`);
  const wanted = { "webkitgtk:browserOptions": { binary, args: ["--automation"] } };
  const session = await call(origin, "POST", "/session", { capabilities: { alwaysMatch: wanted } }) as {
    sessionId: string;
    capabilities: { browserVersion: string };
  };
  const root = `/session/${session.sessionId}`;
  return {
    version: session.capabilities.browserVersion,
    goto: async (url) => void await call(origin, "POST", `${root}/url`, { url }),
    value: (expression) =>
      call(origin, "POST", `${root}/execute/sync`, { script: `return (${expression})`, args: [] }),
    screenshot: async () => Uint8Array.fromBase64(await call(origin, "GET", `${root}/screenshot`) as string),
    async [Symbol.asyncDispose]() {
      await call(origin, "DELETE", root).catch(() => {});
      await end(process);
      await end(screen.process);
    },
  };
}

async function call(origin: string, method: string, path: string, body?: unknown): Promise<unknown> {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const init = body === undefined ? { method, signal } : { method, signal, body: JSON.stringify(body) };
  const { value } = await (await fetch(origin + path, init)).json();
  if (typeof value?.error !== "string") return value;
  throw new Error(`${method} ${path}: ${value.error}: ${value.message}`);
}

function exists(path: string): boolean {
  try {
    return Deno.statSync(path).isFile;
  } catch {
    return false;
  }
}

/** The first of the programs that is there. */
function start(
  names: string[],
  args: string[],
  { install, env = {}, stderr = "null" }: {
    install: string;
    env?: Record<string, string>;
    stderr?: "null" | "piped";
  },
): Deno.ChildProcess {
  for (const name of names) {
    try {
      return new Deno.Command(name, { args, env, stdout: "null", stderr }).spawn();
    } catch (error) {
      if (!(error instanceof Deno.errors.NotFound)) throw error;
    }
  }
  throw new Error(`${names[0]} was not found: ${install}`);
}

/** What the pattern's group matches in the complaints of a program, which are read to their end so that it never waits. */
async function said({ stderr }: Deno.ChildProcess, pattern: RegExp): Promise<string> {
  let heard = "";
  const lines = stderr.pipeThrough(new TextDecoderStream());
  return await new Promise((resolve, reject) => {
    const read = async () => {
      for await (const text of lines) {
        if (heard.length < COMPLAINTS_MAX) heard += text;
        const found = pattern.exec(heard)?.[1];
        if (found !== undefined) resolve(found);
      }
      reject(new Error(`the browser ended: ${heard.slice(0, COMPLAINT_CHARS)}`));
    };
    read().catch(reject);
  });
}

async function end(process: Deno.ChildProcess): Promise<void> {
  try {
    process.kill("SIGTERM");
  } catch {
    // It has ended already.
  }
  await process.status;
}
