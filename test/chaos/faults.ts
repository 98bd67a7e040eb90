// The ways in which a run is hurt. Each is inflicted on a cluster that is training and comes back when the run has taken note
// and what can be undone is undone; whether the run survived is for the caller to judge.
import type { Cluster } from "./cluster.ts";
import { RULE_CUT } from "./network_rule.ts";
import type { JsonLine, Proc } from "./process.ts";
import type { Departure } from "./stall.ts";
import { pick, type Random } from "../support/random.ts";

/** A passing fault of the network lasts this long: longer than a step, shorter than any patience. */
const PASSING_MS = 4_000;
/** A second loss comes this soon after the first: in the middle of its repair. */
const SECOND_LOSS_MS = 300;
/** A bad line: late, uneven and lossy, as a mobile network at its edge. */
const BAD_LINE = { delayMs: 30, jitterMs: 20, loss: 0.02 };

export type FaultName =
  | "kill"
  | "kill two"
  | "leave"
  | "freeze"
  | "tab goodbye"
  | "tab crash"
  | "tab leave"
  | "tab reload"
  | "coordinator"
  | "cut off"
  | "cut path"
  | "one way"
  | "bad line";

export interface Fault {
  name: FaultName;
  /** What must join afterwards for the run to be as strong as before. */
  replace: ("peer" | "tab")[];
  needs: { peers?: number; tabs?: number; network?: true };
  /** The redundancy does not promise that no step is lost. */
  mayLose?: true;
  inflict(cluster: Cluster, random: Random): Promise<Departure>;
}

export const FAULTS: readonly Fault[] = [
  {
    name: "kill",
    replace: ["peer"],
    needs: { peers: 1 },
    inflict: (cluster, random) => kill(cluster, random),
  },
  {
    ...{ name: "kill two", replace: ["peer", "peer"], needs: { peers: 2 }, mayLose: true },
    inflict: async (cluster, random) => {
      const first = kill(cluster, random);
      await sleep(random() * SECOND_LOSS_MS);
      const [{ fromMs }, { untilMs }] = await Promise.all([first, kill(cluster, random)]);
      return { fromMs, untilMs };
    },
  },
  { name: "leave", replace: ["peer"], needs: { peers: 1 }, inflict: leave },
  { name: "freeze", replace: [], needs: { peers: 1 }, inflict: freeze },
  {
    ...{ name: "tab goodbye", replace: ["tab"], needs: { tabs: 1 } },
    inflict: (cluster, random) => timed(cluster, () => takeTab(cluster, random).goodbye()),
  },
  {
    ...{ name: "tab crash", replace: ["tab"], needs: { tabs: 1 } },
    inflict: (cluster, random) => timed(cluster, () => takeTab(cluster, random).crash()),
  },
  {
    ...{ name: "tab leave", replace: ["tab"], needs: { tabs: 1 } },
    inflict: (cluster, random) => timed(cluster, () => takeTab(cluster, random).finish()),
  },
  {
    ...{ name: "tab reload", replace: [], needs: { tabs: 1 } },
    inflict: (cluster, random) => timed(cluster, () => pick(random, cluster.tabs)!.reload()),
  },
  { name: "coordinator", replace: [], needs: {}, inflict: restartCoordinator },
  { name: "cut off", replace: [], needs: { peers: 1, network: true }, inflict: cutOff },
  { name: "cut path", replace: [], needs: { peers: 2, network: true }, inflict: cutPath },
  { name: "one way", replace: [], needs: { peers: 2, network: true }, inflict: cutOneWay },
  { name: "bad line", replace: [], needs: { peers: 1, network: true }, inflict: badLine },
];

export function faultNamed(name: FaultName): Fault {
  return FAULTS.find((fault) => fault.name === name)!;
}

/** Whether the cluster has what the fault takes and keeps `keep` peers of any sort to train on. */
export function isPossible({ needs, replace }: Fault, cluster: Cluster, keep: number): boolean {
  const { peers = 0, tabs = 0, network = false } = needs;
  if (cluster.peers.length < peers || cluster.tabs.length < tabs || (network && cluster.network === null)) {
    return false;
  }
  return cluster.size - Math.max(replace.length, peers + tabs > 0 ? 1 : 0) >= keep;
}

/** Inflicts a fault on a run, has the replacements join, and waits until everybody trains again. */
export async function endure(cluster: Cluster, fault: Fault, random: Random): Promise<Departure> {
  const departure = await fault.inflict(cluster, random);
  for (const kind of fault.replace) await (kind === "tab" ? cluster.addTab() : cluster.addPeer());
  await cluster.settled();
  return departure;
}

/** Until the coordinator's next word that somebody is gone. */
async function timed(cluster: Cluster, hurt: () => void | Promise<void>): Promise<Departure> {
  const from = cluster.events.length;
  const fromMs = Date.now();
  const noted = cluster.event("a departure", isDeparture, from).then(() => Date.now());
  await Promise.all([hurt(), noted]);
  return { fromMs, untilMs: await noted };
}

function isDeparture(line: JsonLine): boolean {
  return line.event === "peer" && /^(gone|left|put out)/.test(String(line.what));
}

function takePeer(cluster: Cluster, random: Random): Proc {
  return cluster.release(pick(random, cluster.peers)!);
}

function takeTab(cluster: Cluster, random: Random) {
  return cluster.release(pick(random, cluster.tabs)!);
}

function kill(cluster: Cluster, random: Random): Promise<Departure> {
  const peer = takePeer(cluster, random);
  return timed(cluster, async () => {
    peer.signal("SIGKILL");
    await peer.ended;
  });
}

function leave(cluster: Cluster, random: Random): Promise<Departure> {
  const peer = takePeer(cluster, random);
  return timed(cluster, async () => {
    peer.signal("SIGTERM");
    await peer.ended;
  });
}

/** Stopped until it is put out, then thawed: a zombie that must join as a new peer. */
async function freeze(cluster: Cluster, random: Random): Promise<Departure> {
  const peer = pick(random, cluster.peers)!;
  const departure = await timed(cluster, () => peer.signal("SIGSTOP"));
  peer.signal("SIGCONT");
  return departure;
}

async function restartCoordinator(cluster: Cluster): Promise<Departure> {
  const fromMs = Date.now();
  await cluster.killCoordinator();
  await cluster.resumeCoordinator();
  await cluster.more(1);
  return { fromMs, untilMs: Date.now() };
}

/** Nothing passes between a peer and anybody until it is put out. */
async function cutOff(cluster: Cluster, random: Random): Promise<Departure> {
  const member = cluster.memberOf(pick(random, cluster.peers)!);
  const departure = await timed(cluster, () => cluster.network!.isolate(member));
  await cluster.network!.heal();
  return departure;
}

/** The path between two peers that both live; the coordinator hears either. */
function cutPath(cluster: Cluster, random: Random): Promise<Departure> {
  return passing(cluster, () => {
    const [a, b] = twoMembers(cluster, random);
    return cluster.network!.cut(a, b);
  });
}

function cutOneWay(cluster: Cluster, random: Random): Promise<Departure> {
  return passing(cluster, () => {
    const [a, b] = twoMembers(cluster, random);
    return cluster.network!.rule(a, b, RULE_CUT);
  });
}

function badLine(cluster: Cluster, random: Random): Promise<Departure> {
  return passing(
    cluster,
    () => cluster.network!.between(cluster.memberOf(pick(random, cluster.peers)!), BAD_LINE),
  );
}

async function passing(cluster: Cluster, hurt: () => Promise<void>): Promise<Departure> {
  const fromMs = Date.now();
  await hurt();
  await sleep(PASSING_MS);
  await cluster.network!.heal();
  return { fromMs, untilMs: Date.now() };
}

function twoMembers(cluster: Cluster, random: Random) {
  const first = pick(random, cluster.peers)!;
  const second = pick(random, cluster.peers.filter((peer) => peer !== first))!;
  return [cluster.memberOf(first), cluster.memberOf(second)] as const;
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
