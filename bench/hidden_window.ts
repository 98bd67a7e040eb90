// A real window of Chromium on a virtual screen, driven through the browser's debugging protocol alone: automation libraries keep
// a page "focused" and switch the throttling of background tabs off, which is just what is measured here. No figures.
import { findChromium } from "../coordinator/cli/install.mjs";
import { ShoalError } from "../peer/wire/errors.ts";
import { startScreen, until } from "../test/support/screen.ts";

/** Keys without a letter act only if their number is told, too. */
const VIRTUAL_KEYS: Record<string, number> = { Backspace: 8, Escape: 27 };

interface Target {
  id: string;
  type: string;
  webSocketDebuggerUrl: string;
}

/** One tab, through its own socket. */
export class Tab {
  readonly id: string;
  readonly #socket: WebSocket;
  #next = 1;
  #waiting = new Map<number, (answer: { result?: unknown; error?: { message: string } }) => void>();

  private constructor(id: string, socket: WebSocket) {
    this.id = id;
    this.#socket = socket;
    socket.onmessage = ({ data }: MessageEvent<string>) => {
      const answer = JSON.parse(data);
      this.#waiting.get(answer.id)?.(answer);
      this.#waiting.delete(answer.id);
    };
  }

  static async open({ id, webSocketDebuggerUrl }: Target): Promise<Tab> {
    const socket = new WebSocket(webSocketDebuggerUrl);
    await new Promise((resolve, reject) => [socket.onopen, socket.onerror] = [resolve, reject]);
    return new Tab(id, socket);
  }

  async call(method: string, params: Record<string, unknown> = {}): Promise<unknown> {
    const id = this.#next++;
    const answered = new Promise<{ result?: unknown; error?: { message: string } }>((resolve) =>
      this.#waiting.set(id, resolve)
    );
    this.#socket.send(JSON.stringify({ id, method, params }));
    const { result, error } = await answered;
    if (error !== undefined) throw new ShoalError("internal", `${method}: ${error.message}`);
    return result;
  }

  async evaluate<T>(expression: string): Promise<T> {
    const params = { expression, returnByValue: true, awaitPromise: true };
    const { result } = await this.call("Runtime.evaluate", params) as { result: { value: T } };
    return result.value;
  }

  /** Until the expression is true in the page. */
  async wait(expression: string): Promise<void> {
    await until(expression, async () => await this.evaluate<boolean>(expression) ? true : null);
  }

  /** A press of the mouse, as a person's: the browser times what follows from it. */
  async press(selector: string): Promise<void> {
    const box = `(() => { const e = document.querySelector(${JSON.stringify(selector)});
      e.scrollIntoView({ block: "center" }); const r = e.getBoundingClientRect();
      return [r.x + Math.min(20, r.width / 2), r.y + r.height / 2]; })()`;
    const [x, y] = await this.evaluate<[number, number]>(box);
    const at = { x, y, button: "left", clickCount: 1 };
    await this.call("Input.dispatchMouseEvent", { ...at, type: "mousePressed" });
    await this.call("Input.dispatchMouseEvent", { ...at, type: "mouseReleased" });
  }

  /** A key of the keyboard, as a person's: a letter, or a name such as Escape. */
  async key(key: string): Promise<void> {
    const text = key.length === 1 ? { text: key } : { windowsVirtualKeyCode: VIRTUAL_KEYS[key] ?? 0 };
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", key, code: key, ...text });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", key, code: key, ...text });
  }

  close(): void {
    this.#socket.close();
  }
}

export class Window implements AsyncDisposable {
  readonly #parts: { screen: Deno.ChildProcess; browser: Deno.ChildProcess; profile: string; origin: string };

  private constructor(
    parts: { screen: Deno.ChildProcess; browser: Deno.ChildProcess; profile: string; origin: string },
  ) {
    this.#parts = parts;
  }

  /** @throws {ShoalError} usage where Xvfb or Chromium is missing */
  static async open(): Promise<Window> {
    const program = findChromium();
    if (program === null) throw new ShoalError("usage", "no Chromium found: install it or set CHROMIUM_PATH");
    const { process: screen, display } = await startScreen();
    const profile = await Deno.makeTempDir({ prefix: "shoal-hidden-" });
    const args = [
      ...["--no-sandbox", "--remote-debugging-port=0", `--user-data-dir=${profile}`, "--no-first-run"],
      ...["--enable-unsafe-webgpu", "--disable-quic", "--disable-background-networking"],
      ...["--disable-component-update", "--disable-sync", "--window-size=1200,860", "about:blank"],
    ];
    const browser = new Deno.Command(program, {
      args,
      env: { DISPLAY: display },
      stdout: "null",
      stderr: "null",
    })
      .spawn();
    const port = await until("the browser", async () => {
      const [first] = (await Deno.readTextFile(`${profile}/DevToolsActivePort`)).split("\n");
      return first ? first : null;
    });
    return new Window({ screen, browser, profile, origin: `http://127.0.0.1:${port}` });
  }

  /** A new tab, in front of the others. */
  async openTab(address: string): Promise<Tab> {
    const { origin } = this.#parts;
    const answer = await fetch(`${origin}/json/new?${encodeURIComponent(address)}`, { method: "PUT" });
    return await Tab.open(await answer.json() as Target);
  }

  /** Brings a tab to the front, which hides the one that was there. */
  async show(tab: Tab): Promise<void> {
    await (await fetch(`${this.#parts.origin}/json/activate/${tab.id}`)).text();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { screen, browser, profile } = this.#parts;
    for (const process of [browser, screen]) {
      process.kill("SIGTERM");
      await process.status;
    }
    await screen.stdout.cancel();
    // The browser's helpers write for a moment longer.
    await new Promise((resolve) => setTimeout(resolve, 500));
    await Deno.remove(profile, { recursive: true }).catch(() => {});
  }
}
