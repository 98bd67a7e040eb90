// The worker of store_entry.ts: the same store, with what only a worker's files can do.
import * as Comlink from "comlink";
import { StoreTab } from "./store_tab.ts";

Comlink.expose(new StoreTab());
