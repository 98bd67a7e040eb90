// What runs inside a tab for store_test.ts: one store on the page and one in a worker, called from outside through `suite`.
// Never part of the shipped pages.
import * as Comlink from "comlink";
import { StoreTab } from "./store_tab.ts";

export type Place = "page" | "worker";

const page = new StoreTab();
let worker: Comlink.Remote<StoreTab> | undefined;

function at(place: Place): StoreTab | Comlink.Remote<StoreTab> {
  if (place === "page") return page;
  worker ??= Comlink.wrap<StoreTab>(
    new Worker(new URL("./store_worker.ts", import.meta.url), { type: "module" }),
  );
  return worker;
}

const suite = {
  runCase: (place: Place, name: string) => at(place).runCase(name),
  take: (place: Place, mark: number) => at(place).take(mark),
  put: (place: Place, number: number, bytes: number) => at(place).put(number, bytes),
  number: (place: Place) => at(place).number(),
  startPutting: (place: Place, bytes: number) => at(place).startPutting(bytes),
  promised: (place: Place) => at(place).promised(),
  saved: (place: Place, ...rest: Parameters<StoreTab["saved"]>) => at(place).saved(...rest),
};

export type StoreSuite = typeof suite;

Object.assign(globalThis, { suite });
