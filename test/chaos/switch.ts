// An Ethernet switch in user space: one TAP device per namespace, and for each direction between two of them a delay, a share
// of lost frames, or nothing at all. It stands in for `tc netem` and packet filters, which many kernels are built without.
// Started by network.ts as a process of its own; commands come in as JSON lines, and it ends when they do.
import { type Rule, RULE_NONE } from "./network_rule.ts";

const O_RDWR = 0o2;
const O_NONBLOCK = 0o4000;
/** _IOW('T', 202, int), linux/if_tun.h. */
const TUNSETIFF = 0x400454can;
const IFF_TAP = 0x0002;
const IFF_NO_PI = 0x1000;
const IFREQ_BYTES = 40;
const POLLIN = 1;
const POLLFD_BYTES = 8;
/** The largest frame of an interface with an MTU of 1500, and some. */
const FRAME_BYTES = 2048;
/** Longest sleep of the loop; new ports and an end of the input are noticed after it. */
const IDLE_MS = 50;
/** Frames taken from one port before the others get their turn. */
const BURST = 64;
/** Frames on their way; beyond it they are lost, as in a real queue. */
const QUEUE_MAX = 20_000;

export type Command =
  | { do: "port"; name: string; mac: number[] }
  | { do: "rule"; from: string; to: string; rule: Rule }
  | { do: "heal" };

interface Port {
  name: string;
  fd: number;
  mac: number[];
}

interface Waiting {
  dueMs: number;
  to: Port;
  frame: Uint8Array<ArrayBuffer>;
}

function openLibc() {
  return Deno.dlopen("libc.so.6", {
    open: { parameters: ["buffer", "i32"], result: "i32" },
    ioctl: { parameters: ["i32", "u64", "buffer"], result: "i32" },
    poll: { parameters: ["buffer", "u64", "i32"], result: "i32", nonblocking: true },
    read: { parameters: ["i32", "buffer", "usize"], result: "isize" },
    write: { parameters: ["i32", "buffer", "usize"], result: "isize" },
  }).symbols;
}

class Switch {
  readonly #libc = openLibc();
  readonly #ports: Port[] = [];
  readonly #rules = new Map<string, Rule>();
  #queue: Waiting[] = [];
  readonly #frame = new Uint8Array(FRAME_BYTES);

  obey(command: Command): void {
    if (command.do === "heal") return this.#rules.clear();
    if (command.do === "rule") {
      this.#rules.set(`${command.from} ${command.to}`, command.rule);
      return;
    }
    this.#ports.push({ name: command.name, mac: command.mac, fd: this.#openTap(command.name) });
  }

  async run(over: () => boolean): Promise<void> {
    while (!over()) {
      const next = this.#queue[0]?.dueMs ?? Infinity;
      const sleep = Math.ceil(Math.min(IDLE_MS, Math.max(0, next - performance.now())));
      for (const port of await this.#readable(sleep)) this.#drain(port);
      this.#deliver();
    }
  }

  #openTap(name: string): number {
    const fd = this.#libc.open(new TextEncoder().encode("/dev/net/tun\0"), O_RDWR | O_NONBLOCK);
    const request = new Uint8Array(IFREQ_BYTES);
    request.set(new TextEncoder().encode(name));
    new DataView(request.buffer).setUint16(16, IFF_TAP | IFF_NO_PI, true);
    if (fd < 0 || this.#libc.ioctl(fd, TUNSETIFF, request) < 0) {
      throw new Error(`cannot make the TAP device ${name}: /dev/net/tun must be there and open to this user`);
    }
    return fd;
  }

  async #readable(timeoutMs: number): Promise<Port[]> {
    const ports = [...this.#ports];
    const fds = new DataView(new ArrayBuffer(Math.max(1, ports.length) * POLLFD_BYTES));
    ports.forEach(({ fd }, i) => {
      fds.setInt32(i * POLLFD_BYTES, fd, true);
      fds.setInt16(i * POLLFD_BYTES + 4, POLLIN, true);
    });
    await this.#libc.poll(new Uint8Array(fds.buffer), BigInt(ports.length), timeoutMs);
    return ports.filter((_, i) => (fds.getInt16(i * POLLFD_BYTES + 6, true) & POLLIN) !== 0);
  }

  #drain(from: Port): void {
    for (let taken = 0; taken < BURST; taken++) {
      const bytes = Number(this.#libc.read(from.fd, this.#frame, BigInt(FRAME_BYTES)));
      if (bytes <= 0) return;
      this.#take(from, this.#frame.slice(0, bytes));
    }
  }

  #take(from: Port, frame: Uint8Array<ArrayBuffer>): void {
    const toAll = (frame[0]! & 1) === 1;
    for (const to of this.#ports) {
      if (to === from || !(toAll || to.mac.every((byte, i) => frame[i] === byte))) continue;
      const rule = this.#rules.get(`${from.name} ${to.name}`) ?? RULE_NONE;
      if (Math.random() < rule.loss || this.#queue.length >= QUEUE_MAX) continue;
      const delay = rule.delayMs + Math.random() * rule.jitterMs;
      this.#enqueue({ dueMs: performance.now() + delay, to, frame });
    }
  }

  /** Keeps the queue in the order of delivery; equal times keep the order of arrival. */
  #enqueue(waiting: Waiting): void {
    let at = this.#queue.length;
    while (at > 0 && this.#queue[at - 1]!.dueMs > waiting.dueMs) at--;
    this.#queue.splice(at, 0, waiting);
  }

  #deliver(): void {
    const now = performance.now();
    let count = 0;
    for (const { dueMs, to, frame } of this.#queue) {
      if (dueMs > now) break;
      // A device that is down or full loses the frame, as any switch would.
      this.#libc.write(to.fd, frame, BigInt(frame.length));
      count++;
    }
    this.#queue = this.#queue.slice(count);
  }
}

async function main(): Promise<void> {
  const ours = new Switch();
  let over = false;
  const running = ours.run(() => over);
  let rest = "";
  for await (const text of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const command = JSON.parse(line) as Command;
      ours.obey(command);
      console.log(JSON.stringify({ event: "done", ...command }));
    }
  }
  over = true;
  await running;
}

await main();
