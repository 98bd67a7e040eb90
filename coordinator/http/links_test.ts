// Tests of the links' address: what others can reach, or exactly what the organizer named.
import assert from "node:assert/strict";
import { linkBase } from "./links.ts";

const addresses = [
  { family: "IPv4" as const, address: "127.0.0.1" },
  { family: "IPv6" as const, address: "fe80::1" },
  { family: "IPv4" as const, address: "192.0.2.7" },
];

Deno.test("links name the address that is listened on", () => {
  assert.equal(linkBase({ host: "127.0.0.1", port: 80, addresses }), "http://127.0.0.1:80");
  assert.equal(linkBase({ host: "::1", port: 8080, addresses }), "http://[::1]:8080");
});

Deno.test("links of a coordinator that listens everywhere name an address that others can reach", () => {
  assert.equal(linkBase({ host: "0.0.0.0", port: 8080, addresses }), "http://192.0.2.7:8080");
  assert.equal(linkBase({ host: "::", port: 8080, addresses: [] }), "http://127.0.0.1:8080");
});

Deno.test("a public URL is taken as it is, and must be one", () => {
  const base = { host: "127.0.0.1", port: 8080, addresses };
  assert.equal(linkBase({ ...base, publicUrl: "https://train.example.org/" }), "https://train.example.org");
  for (const publicUrl of ["train.example.org", "ftp://a", "https://a/b", ""]) {
    assert.throws(() => linkBase({ ...base, publicUrl }), { code: "usage" });
  }
});
