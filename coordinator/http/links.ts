// The address that the run's links carry: a public one if the organizer names it, else one that others can reach. Pure.
import { ShoalError } from "../../peer/wire/errors.ts";

/** What a computer's network interface says of itself, as Deno lists it. */
export interface NetworkAddress {
  family: "IPv4" | "IPv6";
  address: string;
}

/** Addresses that mean "every network of this computer" and are of no use in a link. */
const EVERYWHERE = ["0.0.0.0", "::"];

export interface LinkBase {
  host: string;
  port: number;
  publicUrl?: string;
  addresses: readonly NetworkAddress[];
}

/**
 * Scheme, host and port without a slash at the end. Listening everywhere, the first address that is not loopback is named.
 * @throws {ShoalError} usage for a public URL that is not http(s).
 */
export function linkBase({ host, port, publicUrl, addresses }: LinkBase): string {
  if (publicUrl !== undefined) {
    const url = URL.canParse(publicUrl) ? new URL(publicUrl) : null;
    if (url !== null && /^https?:$/.test(url.protocol) && url.pathname === "/") return url.origin;
    throw new ShoalError(
      "usage",
      `--public_url is "${publicUrl}"; use https://name or http://name:port, without a path`,
    );
  }
  const near = addresses.find(({ family, address }) => family === "IPv4" && !address.startsWith("127."));
  const name = EVERYWHERE.includes(host) ? near?.address ?? "127.0.0.1" : host;
  return `http://${name.includes(":") ? `[${name}]` : name}:${port}`;
}
