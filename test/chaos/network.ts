// A network of a test's own: one namespace per member, joined by a switch that can delay, lose and cut in each direction.
// Nothing of it touches the machine's network. Without the right to make it a test fails with a sentence that says so.
import type { Guardian } from "./guardian.ts";
import { type Rule, RULE_CUT } from "./network_rule.ts";
import { Proc, ROOT } from "./process.ts";
import type { Command } from "./switch.ts";

/** Members get .1, .2 and so on; the network exists in the namespaces only, so it cannot collide with a real one. */
const SUBNET = "10.213.0";
const MEMBERS_MAX = 250;
const REMEDY = "chaos tests of the network need Linux with iproute2 and /dev/net/tun, and root";

export interface Member {
  space: string;
  address: string;
}

export class Network implements AsyncDisposable {
  readonly #guardian: Guardian;
  readonly #switch: Proc;
  readonly #members: Member[] = [];
  #told = 0;

  private constructor(guardian: Guardian, process: Proc) {
    this.#guardian = guardian;
    this.#switch = process;
  }

  /** @throws {Error} if this machine or this user cannot make namespaces. */
  static async create(guardian: Guardian): Promise<Network> {
    const args = ["run", "--quiet", "--no-prompt", "--no-check", "--allow-ffi", `--allow-read=${ROOT}`];
    const process = new Proc({
      ...{ name: "the network's switch", guardian, command: Deno.execPath() },
      args: [...args, `${ROOT}test/chaos/switch.ts`],
    });
    const network = new Network(guardian, process);
    try {
      await network.#tell({ do: "heal" });
      return network;
    } catch (error) {
      await process[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Why this machine or this user cannot make such a network; null if it can. Leaves nothing behind. */
  static async problem(): Promise<string | null> {
    if (Deno.build.os !== "linux" || Deno.uid() !== 0) return REMEDY;
    const space = `sh${Deno.pid}probe`;
    try {
      await Deno.stat("/dev/net/tun");
      await ip("netns", "add", space);
      await ip("-n", space, "link", "set", "lo", "up");
      await ip("netns", "del", space);
      return null;
    } catch (error) {
      return `${REMEDY}: ${error instanceof Error ? error.message : error}`;
    }
  }

  /** A new namespace with an address, reachable from all others. */
  async join(): Promise<Member> {
    const number = this.#members.length + 1;
    if (number > MEMBERS_MAX) throw new Error(`a test network holds ${MEMBERS_MAX} members at most`);
    // The device has the name of its namespace, which must fit in 15 characters.
    const space = `sh${Deno.pid}n${number}`;
    const mac = [2, 0, 0, 0, 0, number];
    await this.#guardian.note({ kind: "netns", value: space });
    await ip("netns", "add", space);
    await this.#tell({ do: "port", name: space, mac });
    await ip("link", "set", space, "netns", space);
    const member = { space, address: `${SUBNET}.${number}` };
    await configure(member, mac);
    this.#members.push(member);
    return member;
  }

  /** What frames from one member to another go through, in this direction only. */
  async rule(from: Member, to: Member, rule: Rule): Promise<void> {
    await this.#tell({ do: "rule", from: from.space, to: to.space, rule });
  }

  /** Nothing passes between two members, in either direction. */
  async cut(a: Member, b: Member): Promise<void> {
    await this.rule(a, b, RULE_CUT);
    await this.rule(b, a, RULE_CUT);
  }

  /** One rule for everything that a member sends and receives. */
  async between(member: Member, rule: Rule): Promise<void> {
    for (const other of this.#members) {
      if (other === member) continue;
      await this.rule(member, other, rule);
      await this.rule(other, member, rule);
    }
  }

  /** Nothing passes between a member and anybody. */
  async isolate(member: Member): Promise<void> {
    await this.between(member, RULE_CUT);
  }

  /** Every frame passes again, at once. */
  async heal(): Promise<void> {
    await this.#tell({ do: "heal" });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // The namespaces are the guardian's: they go when the processes inside them have gone.
    await this.#switch[Symbol.asyncDispose]();
  }

  async #tell(command: Command): Promise<void> {
    await this.#switch.tell(command);
    const told = this.#told++;
    try {
      await this.#switch.line(`the command ${command.do}`, (line) => line.event === "done", told);
    } catch (error) {
      throw new Error(`no test network: ${REMEDY}`, { cause: error });
    }
  }
}

/** Names and addresses are set inside the namespace: the machine's own network never sees them. */
async function configure({ space, address }: Member, mac: number[]): Promise<void> {
  const inside = (...args: string[]) => ip("-n", space, ...args);
  const text = mac.map((byte) => byte.toString(16).padStart(2, "0")).join(":");
  await inside("link", "set", "lo", "up");
  await inside("link", "set", space, "address", text);
  await inside("addr", "add", `${address}/24`, "dev", space);
  await inside("link", "set", space, "up");
  await inside("route", "add", "default", "dev", space);
}

async function ip(...args: string[]): Promise<void> {
  let problem: string;
  try {
    const { success, stderr } = await new Deno.Command("ip", { args, stdout: "null", stderr: "piped" })
      .output();
    if (success) return;
    problem = new TextDecoder().decode(stderr).trim();
  } catch (error) {
    problem = String(error);
  }
  throw new Error(`no test network: "ip ${args.join(" ")}" failed (${problem}); ${REMEDY}`);
}
