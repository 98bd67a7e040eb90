// Tests of what the page keeps and for how long: agreements, limits, sums of a day and of a run. Storage is a map.
import assert from "node:assert/strict";
import fc from "fast-check";
import { NO_LIMITS } from "../peer/wire/limits.ts";
import {
  CONSENT_DAYS,
  CONSENT_VERSION,
  consentTo,
  readConsent,
  standingOf,
  termsOf,
} from "./contributor_consent.ts";
import { addGiven, notePace, NOTHING, readGiven, slowdownOf } from "./contributor_given.ts";
import { dayOf, Kept, type Place, runOf } from "./contributor_kept.ts";
import type { Invite } from "../peer/wire/status.ts";
import { invite, snapshot } from "./fixtures_data.ts";
import { strict } from "./fixtures_tab.ts";

class MapPlace implements Place {
  readonly texts = new Map<string, string>();
  get length(): number {
    return this.texts.size;
  }
  key(index: number): string | null {
    return [...this.texts.keys()][index] ?? null;
  }
  getItem(name: string): string | null {
    return this.texts.get(name) ?? null;
  }
  setItem(name: string, text: string): void {
    this.texts.set(name, text);
  }
  removeItem(name: string): void {
    this.texts.delete(name);
  }
}

function open() {
  const [long, tab] = [new MapPlace(), new MapPlace()];
  return { long, tab, kept: new Kept(() => long, () => tab) };
}

const NOW = Date.UTC(2026, 2, 14, 9);
const DAY = 24 * 60 * 60 * 1000;

Deno.test("consent stands for thirty days, for the same run and text, and not before it was given", function test() {
  const consent = consentTo(invite, NOW);
  assert.equal(standingOf(null, invite, NOW), "none");
  assert.equal(standingOf(consent, invite, NOW), "stands");
  assert.equal(standingOf(consent, invite, NOW + CONSENT_DAYS * DAY - 1), "stands");
  assert.equal(standingOf(consent, invite, NOW + CONSENT_DAYS * DAY), "expired");
  assert.equal(standingOf(consent, invite, NOW - DAY), "expired", "a clock that was set back");
  assert.equal(standingOf({ ...consent, version: CONSENT_VERSION - 1 }, invite, NOW), "changed");
  for (const part of [{ operator: "another" }, { dataset: "another" }, { runName: "another" }]) {
    assert.equal(standingOf(consent, { ...invite, ...part }, NOW), "changed");
  }
  assert.equal(standingOf(consent, { ...invite, peers: 60, state: "paused" }, NOW), "stands");
  const frozen = { params: 1_000_000, bytes: 2_000_000, hosts: [] as string[] };
  assert.equal(standingOf(consent, { ...invite, base: frozen }, NOW), "stands");
  const elsewhere = { ...invite, base: { ...frozen, hosts: ["models.example"] } };
  assert.equal(standingOf(consent, elsewhere, NOW), "changed");
  const kept = readConsent(JSON.parse(JSON.stringify(consentTo(elsewhere, NOW))));
  assert.equal(standingOf(kept, elsewhere, NOW), "stands");
  assert.equal(standingOf(kept, invite, NOW), "changed");
});

Deno.test("who fetches a frozen model is told how much, and who sees the address", function test() {
  const takes = (base?: Invite["base"]) =>
    termsOf({ ...invite, ...(base === undefined ? {} : { base }) }).find((it) =>
      it.title === "How much it takes"
    )!.text;
  const frozen = { params: 1_000_000, bytes: 2_000_000, hosts: [] as string[] };
  assert.equal(takes(frozen), `${takes()} Once, about 2 MB of a model that stays as it is are fetched.`);
  assert.match(
    takes({ ...frozen, hosts: ["a.example", "b.example"] }),
    /fetched from a.example, b.example, where your network address is seen\.$/,
  );
  const trained = { ...frozen, hosts: ["a.example"], trained: true };
  assert.match(
    takes(trained),
    / When the run begins, about 2 MB of its first weights are fetched from a.example, /,
  );
});

Deno.test("the version of the consent changes with its text", function test() {
  const text = termsOf(invite).map(({ title, text }) => `${title}: ${text}`).join("\n");
  // Whoever changes the text raises CONSENT_VERSION and writes the new pair here.
  assert.deepEqual([CONSENT_VERSION, runOf(text)], [3, "1ffaa36f9ccd0"]);
});

Deno.test("what is kept comes back after a reload, and another tab has a visit of its own", function test() {
  const { long, tab, kept } = open();
  kept.limits = strict;
  kept.name = "  Ada’s laptop ";
  kept.agree("run", consentTo(invite, NOW));
  kept.setGiven("run", { ...NOTHING, steps: 7 });
  kept.last = "token";
  kept.visit = { run: "run", paused: true };
  const again = new Kept(() => long, () => tab);
  assert.deepEqual(again.limits, strict);
  assert.equal(again.name, "Ada’s laptop");
  assert.deepEqual(again.consent("run"), consentTo(invite, NOW));
  assert.equal(again.consent("another"), null);
  assert.equal(again.given("run").steps, 7);
  assert.equal(again.last, "token");
  assert.deepEqual(again.visit, { run: "run", paused: true });
  assert.equal(new Kept(() => long, () => new MapPlace()).visit, null);
});

Deno.test("each run of a coordinator has a last link of its own, and one at the root keeps the old one", () => {
  const long = new MapPlace();
  const at = (place?: string) => new Kept(() => long, () => new MapPlace(), place);
  at().last = "root";
  at("/r/a").last = "token of a";
  assert.deepEqual([at("/").last, at("/r/a").last, at("/r/b").last], ["root", "token of a", ""]);
});

Deno.test("forgetting deletes all of it, and nothing that is not ours", function test() {
  const { long, tab, kept } = open();
  kept.limits = strict;
  kept.name = "x";
  kept.agree("run", consentTo(invite, NOW));
  kept.addTraffic("2026-03-14", { up: 1, down: 1 });
  kept.visit = { run: "run", paused: false };
  long.setItem("other", "1");
  kept.forget();
  assert.deepEqual([...long.texts.keys(), ...tab.texts.keys()], ["other"]);
  assert.deepEqual(kept.limits, NO_LIMITS);
});

Deno.test("a day's traffic is summed over tabs, and another day begins at nothing", function test() {
  const { long, kept } = open();
  const other = new Kept(() => long, () => new MapPlace());
  kept.addTraffic("2026-03-14", { up: 10, down: 1 });
  other.addTraffic("2026-03-14", { up: 5, down: 2 });
  assert.deepEqual(kept.today("2026-03-14"), { up: 15, down: 3 });
  assert.deepEqual(kept.today("2026-03-15"), { up: 0, down: 0 });
  other.addTraffic("2026-03-15", { up: 1, down: 0 });
  assert.deepEqual(kept.today("2026-03-15"), { up: 1, down: 0 });
  assert.equal(dayOf(new Date(2026, 2, 4, 23, 59)), "2026-03-04");
});

Deno.test("a browser that keeps nothing, or keeps nonsense, makes no call fail", function test() {
  const deny = (): Place => {
    throw new DOMException("denied", "SecurityError");
  };
  const kept = new Kept(deny, deny);
  kept.limits = strict;
  kept.visit = { run: "x", paused: false };
  kept.forget();
  assert.deepEqual([kept.limits, kept.name, kept.visit, kept.last], [NO_LIMITS, "", null, ""]);
  const { long, kept: spoilt } = open();
  fc.assert(
    fc.property(fc.oneof(fc.json(), fc.string(), fc.constant("x".repeat(5000))), function reads(text) {
      for (const name of ["limits", "name", "consent.run", "given.run", "today", "last", "visit"]) {
        long.setItem(`shoal.${name}`, text);
      }
      assert.ok(spoilt.limits.duty > 0);
      assert.equal(typeof spoilt.name, "string");
      assert.ok(spoilt.given("run").steps >= 0 && spoilt.today("d").up >= 0);
      const consent = spoilt.consent("run");
      assert.ok(consent === null || readConsent(consent) !== null);
    }),
    { seed: 3, numRuns: 100 },
  );
});

Deno.test("a run's key is short and does not hold its token", function test() {
  const key = runOf("k3v9-2mfa-hx7q-w8rt");
  assert.match(key, /^[0-9a-f]{9,14}$/);
  assert.notEqual(key, runOf("k3v9-2mfa-hx7q-w8ru"));
  assert.equal(key, runOf("k3v9-2mfa-hx7q-w8rt"));
});

Deno.test("what was given adds up over snapshots, and time asleep is no time lent", function test() {
  const at = (step: number, part = {}) => ({ ...snapshot, step, tokens: step * 10, bytesUp: step, ...part });
  let given = addGiven(NOTHING, null, at(3), 0);
  assert.deepEqual([given.steps, given.tokens, given.ms], [0, 30, 0], "steps before the visit are not ours");
  given = addGiven(given, at(3), at(5), 1_000);
  assert.deepEqual([given.steps, given.tokens, given.bytesUp, given.ms], [2, 50, 5, 1_000]);
  given = addGiven(given, at(5), at(9), 3_600_000);
  assert.equal(given.ms, 1_000);
  const paused = { phase: "paused" } as const;
  assert.equal(addGiven(given, at(9, paused), at(20, paused), 500).steps, given.steps);
  assert.equal(addGiven(given, at(9), at(5), 500).tokens, given.tokens, "sums never fall");
  assert.deepEqual(readGiven(JSON.parse(JSON.stringify(given))), given);
  assert.deepEqual(readGiven({ steps: -1, tokens: "many", ms: Infinity }), NOTHING);
});

Deno.test("a computer is slow only against its own best at the same work, and not for one slow step", function test() {
  const steps = (values: number[], duty = 1, record: Parameters<typeof notePace>[0] = null) =>
    values.reduce((kept, ownStepMs) => notePace(kept, { ...snapshot, ownStepMs }, duty), record);
  const fast = Array.from({ length: 9 }, (_, index) => 100 + index);
  const slow = Array.from({ length: 9 }, (_, index) => 300 + index);
  const known = steps(fast);
  assert.equal(slowdownOf(known), 1);
  assert.equal(slowdownOf(steps([900], 1, known)), 105 / 104, "one slow step moves the median by one place");
  assert.equal(slowdownOf(steps(slow, 1, known)), 304 / 104);
  assert.equal(slowdownOf(steps(slow, 0.5, known)), 1, "another limit is other work");
  assert.equal(slowdownOf(steps(slow.slice(1))), 1, "too few steps");
  assert.equal(notePace(null, { ...snapshot, phase: "loading" }, 1), null);
});
