// A peer's first words on a socket: who it is, and to a coordinator that has restarted, who it was and what it still holds. Pure
// functions of a session's parts.
import type { PeerCore } from "./core/peer_core.ts";
import type { Holder } from "./holder.ts";
import { haveOf } from "./reconnect.ts";
import type { SessionFacts, SessionOptions } from "./session_facts.ts";
import { type PeerMessage, PROTOCOL_VERSION } from "./wire/control.ts";

type Hello = PeerMessage & { type: "hello" };

export function firstHello(options: SessionOptions): Hello {
  const { token, runtime, adapter, engine, name, mark } = options;
  const base = { type: "hello" as const, version: PROTOCOL_VERSION, token, runtime };
  const about = { adapter: adapter.slice(0, 500), engine: engine.slice(0, 500) };
  const named = name === undefined ? {} : { name: name.slice(0, 100) };
  return { ...base, ...about, ...named, ...(mark === undefined ? {} : { mark }) };
}

export function resumption(
  facts: SessionFacts,
  core: PeerCore,
  holder: Holder,
): Pick<Hello, "resume" | "have"> {
  const { peer, ticket } = facts.welcome!;
  const resume = { peer, ticket, epoch: facts.seen!.epoch };
  const { view, instances } = core.state;
  if (view === null) return { resume };
  const logged = instances.filter((it) => it.work?.step === it.step && it.work?.total === "logged");
  const held = {
    ...{ plans: instances.map((it) => it.plan), states: holder.states() },
    logged: logged.map((it) => it.plan.index),
  };
  return { resume, have: haveOf(view, facts.welcome!.spec, held) };
}
