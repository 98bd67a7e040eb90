// The run's two tokens and its port, kept in the run's folder so that a resumed run keeps its links: peers that lost their
// coordinator find it again by themselves. The file is for the organizer's eyes only.
import { join } from "node:path";

export interface Access {
  joinToken: string;
  adminToken: string;
  /** The port used last; 0 = none yet. */
  port: number;
}

const ACCESS_NAME = "access.json";
const OWNER_ONLY = 0o600;
const TOKEN = /^[A-Za-z0-9_-]{16,64}$/;

/** The folder's tokens, or fresh ones; an unreadable or malformed file counts as none. */
export function readAccess(runDir: string): Access {
  try {
    const { joinToken, adminToken, port } = JSON.parse(Deno.readTextFileSync(join(runDir, ACCESS_NAME)));
    const valid = TOKEN.test(joinToken) && TOKEN.test(adminToken) && Number.isInteger(port) && port >= 0 &&
      port < 65_536;
    if (valid) return { joinToken, adminToken, port };
  } catch {
    // Not there yet, or damaged: the run gets new links.
  }
  return { joinToken: randomToken(), adminToken: randomToken(), port: 0 };
}

/** Written beside and renamed: a crash in between must not cost the run the links under which its peers look for it. */
export function writeAccess(runDir: string, access: Access): void {
  const path = join(runDir, ACCESS_NAME);
  {
    using file = Deno.openSync(`${path}.new`, {
      write: true,
      create: true,
      truncate: true,
      mode: OWNER_ONLY,
    });
    const bytes = new TextEncoder().encode(JSON.stringify(access));
    for (let at = 0; at < bytes.length;) at += file.writeSync(bytes.subarray(at));
    file.syncSync();
  }
  Deno.renameSync(`${path}.new`, path);
}

/** 128 random bits, URL-safe. */
export function randomToken(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
