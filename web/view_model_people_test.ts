// Who is kept out and who steers, as the page says it: until when, by whom, and only to whom it may be said.
import assert from "node:assert/strict";
import type { BanStatus, OrganizerList } from "../peer/wire/invitations.ts";
import { peopleView, stayOrder, STAYS } from "./view_model_people.ts";

const NOW = 1_000_000;
const first: OrganizerList = {
  ...{ you: "the organizer", first: true },
  organizers: [{ id: "o1", name: "Ada", link: "https://shoal.example/admin#token" }],
};

Deno.test("people: nothing is shown until both lists are known", () => {
  assert.equal(peopleView(null, first, NOW), null);
  assert.equal(peopleView([], null, NOW), null);
});

Deno.test("people: a ban says for how long, by whom and why; the newest stands first", () => {
  const bans: BanStatus[] = [
    { id: "b1", peer: "tab-1", reason: "", until: null, by: "the organizer" },
    { id: "b2", peer: "tab-2", reason: "wrong class", until: NOW + 90_000, by: "Ada" },
    { id: "b3", peer: "tab-3", reason: "", until: NOW - 5, by: "Ada" },
  ];
  assert.deepEqual(peopleView(bans, first, NOW)?.bans, [
    { id: "b3", peer: "tab-3", text: "for 0 ms more, by Ada" },
    { id: "b2", peer: "tab-2", text: "for 1 min 30 s more, by Ada: wrong class" },
    { id: "b1", peer: "tab-1", text: "for good, by the organizer" },
  ]);
});

Deno.test("people: links are shown to whoever may withdraw them", () => {
  const view = peopleView([], first, NOW);
  assert.deepEqual([view?.mayName, view?.organizers[0]?.link], [true, "https://shoal.example/admin#token"]);
  const another = peopleView([], {
    ...first,
    you: "Ada",
    first: false,
    organizers: [{ id: "o1", name: "Ada" }],
  }, NOW);
  assert.deepEqual([another?.mayName, another?.organizers[0]?.link, another?.you], [false, null, "Ada"]);
});

Deno.test("people: each time for which a computer stays out becomes an order of its own", () => {
  assert.deepEqual(STAYS.map(({ value }) => stayOrder(value)), [
    {},
    { minutes: 10 },
    { minutes: 60 },
    { minutes: 1440 },
    { ban: true },
  ]);
  assert.deepEqual(stayOrder(""), {});
});
