// Starts a coordinator of several runs: one folder, one server, one organizer's link beside those of each run. Library entry for
// the command line and tests; prints nothing itself.
import { join } from "node:path";
import { CorpusLibrary } from "../corpora/library.ts";
import { corpusIdOf } from "../corpora/types.ts";
import { createHubApp } from "../http/hub_app.ts";
import { linkBase } from "../http/links.ts";
import { serve } from "../main.ts";
import { readAccess, writeAccess } from "../store/access.ts";
import type { ConfigWish } from "../../peer/wire/hub.ts";
import type { CoordinatorEventLine } from "../core/run_state.ts";
import { Datasets } from "./datasets.ts";
import { Estimator } from "./estimator.ts";
import { Hub } from "./hub.ts";

export interface HubServerOptions {
  runsDir: string;
  host: string;
  /** 0 = the one used last, if it is free; else any. */
  port: number;
  operator: string;
  webRoot: string;
  /** Configuration keys of new runs, unless their makers say otherwise; absent: Shoal's own. */
  defaults?: ConfigWish;
  publicUrl?: string;
  onEvent(id: string, line: CoordinatorEventLine): void;
  /** One line about a run for whoever reads the terminal. */
  onNote(id: string, text: string): void;
}

export interface HubServer {
  hub: Hub;
  /** The runs page as everybody sees it, and as the organizer does. */
  publicLink: string;
  adminLink: string;
  /** With `finish` each run that trains ends with a checkpoint first; it goes on from there when the folder is opened again. */
  stop(reason: string, how?: { finish?: boolean }): Promise<void>;
}

/** @throws {ShoalError} usage if the folder or the address is taken */
export async function startHub(options: HubServerOptions): Promise<HubServer> {
  const { runsDir, operator, webRoot, onEvent, onNote } = options;
  // A public URL that is none should be told before anything is opened.
  linkBase({ ...options, addresses: [] });
  Deno.mkdirSync(runsDir, { recursive: true });
  const access = readAccess(runsDir);
  const { adminToken } = access;
  let [base, port] = ["", 0];
  const hub = await Hub.open({
    ...{ runsDir, webRoot, operator, onEvent, onNote },
    ...{ base: () => base, port: () => port },
  });
  const estimator = new Estimator();
  try {
    const library = await CorpusLibrary.open({
      folder: join(runsDir, "corpora"),
      usedBy: (id) => hub.usersOf(id),
    });
    const datasets = new Datasets(() => library.listCorpora());
    const takeText = async (run: string) => {
      const dataset = await hub.takeText(run), id = corpusIdOf(dataset);
      if (id !== null) await library.adopt(id);
      return dataset;
    };
    const parts = { hub, datasets, library, estimator, takeText, defaults: options.defaults ?? {} };
    const answer = createHubApp({ ...parts, adminToken, operator, webRoot });
    const server = serve(options, access.port, answer);
    ({ port } = server.addr as Deno.NetAddr);
    base = linkBase({ ...options, port, addresses: Deno.networkInterfaces() });
    writeAccess(runsDir, { ...access, port });
    const stop = async (reason: string, how?: { finish?: boolean }) => {
      await hub.close(reason, how);
      library.close();
      estimator.close();
      await server.shutdown();
    };
    return { hub, publicLink: `${base}/runs`, adminLink: `${base}/runs#${adminToken}`, stop };
  } catch (error) {
    await hub.close("it cannot be reached");
    throw error;
  }
}
