// The contributor's page without its looks: asks about the run, lends on a click, holds the owner's limits, keeps what a reload
// must not lose. Decides nothing about training. What must stay true: before the click no worker, no socket and no WebGPU,
// and the peer's code is not even loaded.
import { type Signal, signal } from "@preact/signals";
import { ShoalError } from "../peer/wire/errors.ts";
import { decide, FREE, type Limits } from "../peer/wire/limits.ts";
import { ENGINES, isEngineWish, type TabSnapshot } from "../peer/wire/status.ts";
import type { PagePeer } from "../peer/browser.ts";
import type { Api } from "./api.ts";
import { refusalFrom } from "./api.ts";
import { consentTo, expiresAt, standingOf } from "./contributor_consent.ts";
import { addGiven, notePace } from "./contributor_given.ts";
import { dayOf, type Kept, runOf } from "./contributor_kept.ts";
import { featuresOf, ScreenLight, Watch } from "./contributor_watch.ts";
import { latestOnly, poll } from "./pace.ts";
import type { TabModel } from "./view_model_tab.ts";
import { type FieldId, withField } from "./view_model_tab_limits.ts";

/** How often limits are looked at; also in the background, where browsers let a timer through once a second. */
const LOOK_MS = 1_000;
/** Sums are written this often, and when the page goes. */
const KEEP_MS = 5_000;
/** Phases after which nothing runs here any more. */
const ENDED = ["left", "done", "kicked", "device-lost", "wrong-version"];

export interface DeskOptions {
  api: Pick<Api, "invite">;
  kept: Kept;
  /** Where the run's addresses begin. */
  base: string;
  token: string;
  /** What the address asks for with ?engine=. */
  engine: string;
}

export class Desk {
  readonly model: Signal<TabModel>;
  readonly #options: DeskOptions;
  readonly #run: string;
  readonly #watch = new Watch(() => this.#look());
  readonly #light = new ScreenLight();
  /** A second press changes nothing. */
  #begun = false;
  #loading: Promise<PagePeer> | null = null;
  #last: { snapshot: TabSnapshot | null; at: number } = { snapshot: null, at: 0 };
  /** Of this visit, not yet written. */
  #unkept = { up: 0, down: 0 };
  #keptAt = 0;

  constructor(options: DeskOptions) {
    const { kept, token, engine } = options;
    this.#options = options;
    this.#run = runOf(token);
    this.model = signal<TabModel>({
      ...{ invite: null, snapshot: null, asked: false, refusal: null, declined: "no", note: "" },
      ...{
        secure: isSecureContext,
        webgpu: "gpu" in navigator,
        engine: isEngineWish(engine) ? engine : "auto",
      },
      ...{ consent: { standing: "none", until: "" }, ruling: FREE, ended: null, ownerPaused: false },
      ...{ hidden: document.hidden, onBattery: false, wakeLock: false, features: featuresOf(), pace: null },
      ...{ limits: kept.limits, name: kept.name, given: kept.given(this.#run), today: kept.today(today()) },
    });
  }

  /** Asks about the run; a tab that was reloaded while it lent goes on lending. */
  async begin(): Promise<void> {
    const { token, engine } = this.#options;
    if (!token) return this.#learn({ refusal: { code: "no-token", message: "" } });
    if (!isEngineWish(engine)) {
      const known = ENGINES.map((name) => `?engine=${name}`).join(", ");
      const message = `The address asks for the engine "${engine}"; leave it out, or use one of ${known}.`;
      return this.#learn({ refusal: { code: "usage", message } });
    }
    await poll(() => this.#askInvite());
    const { invite } = this.model.value;
    if (invite === null) return;
    const consent = this.#options.kept.consent(this.#run);
    const standing = standingOf(consent, invite, Date.now());
    this.#learn({ consent: { standing, until: consent === null ? "" : dateText(expiresAt(consent)) } });
    this.#look();
    const { visit } = this.#options.kept;
    const open = invite.state !== "finished" && invite.state !== "failed";
    if (open && standing === "stands" && visit?.run === this.#run) await this.#lend(visit.paused);
  }

  /** The click. */
  async lend(): Promise<void> {
    const { invite } = this.model.value;
    if (invite === null) return;
    const consent = consentTo(invite, Date.now());
    this.#options.kept.agree(this.#run, consent);
    this.#options.kept.last = this.#options.token;
    this.#learn({ consent: { standing: "stands", until: dateText(expiresAt(consent)) } });
    await this.#lend(false);
  }

  async #lend(paused: boolean): Promise<void> {
    if (this.#begun) return;
    this.#begun = true;
    // Not waited for: the browser may have a question of its own first.
    if (this.model.value.limits.onlyIdle) void this.#watch.watchIdle();
    await this.#watch.watchPower();
    this.#look();
    this.#begun = this.model.value.ruling.verdict !== "finish";
    if (!this.#begun) return;
    const { kept, token } = this.#options;
    const { limits, name, engine, ruling } = this.model.value;
    this.#learn({ asked: true, ownerPaused: paused });
    kept.visit = { run: this.#run, paused };
    const show = latestOnly((snapshot: TabSnapshot) => this.#show(snapshot));
    const options = {
      origin: this.#options.base,
      token,
      engine,
      limits,
      paused: paused || ruling.verdict === "wait",
    };
    try {
      const peer = await this.#peer();
      setInterval(() => this.#look(), LOOK_MS);
      await peer.start({ ...options, ...(name === "" ? {} : { name }) }, show);
    } catch (error) {
      this.#learn({ refusal: refusalFrom(error) });
    }
  }

  refuse(): void {
    this.#learn({ declined: "refused" });
  }

  /** Everything that is kept goes, here and in the worker's stores. */
  async withdraw(): Promise<void> {
    if (this.model.value.asked) await (await this.#peer()).leaveNow().catch(() => {});
    this.#options.kept.forget();
    this.#learn({ declined: "withdrawn", asked: false, snapshot: null });
    // Loaded only to delete, if it was not: what an earlier visit has stored goes too.
    await (await this.#peer()).forget().catch(() => {});
    this.#options.kept.forget();
  }

  /** Looks again; joins again at once if this computer was lending before. */
  again(): void {
    const { kept } = this.#options;
    const { asked, declined } = this.model.value;
    if (asked && declined === "no") kept.visit = { run: this.#run, paused: false };
    location.reload();
  }

  pause(): void {
    this.#ownerPaused(true);
  }

  resume(): void {
    this.#ownerPaused(false);
  }

  #ownerPaused(paused: boolean): void {
    this.#options.kept.visit = { run: this.#run, paused };
    this.#learn({ ownerPaused: paused });
    const waits = paused || this.model.value.ruling.verdict === "wait";
    this.#tell((peer) => waits ? peer.pause() : peer.resume());
  }

  finish(): void {
    // Who reloads now has said already that they want to go.
    this.#options.kept.visit = null;
    this.#tell((peer) => peer.finishAndLeave());
  }

  leave(): void {
    this.#options.kept.visit = null;
    this.#tell((peer) => peer.leaveNow());
  }

  async change(id: FieldId, text: string): Promise<void> {
    // The browser asks its own question, which has to follow the press at once.
    if (id === "onlyIdle" && text === "true" && !await this.#watch.watchIdle()) {
      return this.#learn({
        limits: { ...this.model.value.limits, onlyIdle: false },
        note: "The browser did not allow this page to know whether the computer is used.",
      });
    }
    this.#setLimits(withField(this.model.value.limits, id, text));
  }

  #setLimits(limits: Limits): void {
    this.#options.kept.limits = limits;
    this.#learn({ limits, note: "" });
    this.#tell((peer) => peer.setLimits(limits));
    this.#look();
  }

  setName(name: string): void {
    this.#options.kept.name = name;
    this.#learn({ name: this.#options.kept.name || name.trim() });
  }

  async setWakeLock(on: boolean): Promise<void> {
    this.#learn({ wakeLock: on });
    await this.#light.set(on);
  }

  say(note: string): void {
    this.#learn({ note });
  }

  setHidden(hidden: boolean): void {
    this.#learn({ hidden });
    this.#tell((peer) => peer.setHidden(hidden));
  }

  goodbye(): void {
    this.#keep();
    this.#tell((peer) => peer.goodbye());
  }

  /** A page that the browser gives back said goodbye when it went; it goes on as it was, as a new peer. */
  comeBack(): void {
    if (this.model.value.asked) this.#tell((peer) => peer.comeBack());
    else location.reload();
  }

  #learn(part: Partial<TabModel>): void {
    this.model.value = { ...this.model.value, ...part };
  }

  /** Loads the peer's code once; it computes nothing until `start`. */
  #peer(): Promise<PagePeer> {
    this.#loading ??= import("../peer/browser.ts").then((module) => module.openTabPeer());
    return this.#loading;
  }

  /** Sends a wish to the running peer; a failure becomes a screen, never silence. */
  #tell(wish: (peer: PagePeer) => Promise<void>): void {
    if (!this.model.value.asked) return;
    this.#peer().then(wish).catch((error) => this.#learn({ refusal: refusalFrom(error) }));
  }

  /** Asks until the coordinator answers or refuses; an unreachable one may come back. */
  async #askInvite(): Promise<"ok" | "failed" | "stop"> {
    try {
      this.#learn({ invite: await this.#options.api.invite(), refusal: null });
      return "stop";
    } catch (error) {
      this.#learn({ refusal: refusalFrom(error) });
      return error instanceof ShoalError && error.code === "offline" ? "failed" : "stop";
    }
  }

  #show(snapshot: TabSnapshot): void {
    const now = performance.now();
    const { snapshot: before, at } = this.#last;
    this.#last = { snapshot, at: now };
    const { given, pace, limits } = this.model.value;
    this.#unkept.up += Math.max(0, snapshot.bytesUp - (before?.bytesUp ?? 0));
    this.#unkept.down += Math.max(0, snapshot.bytesDown - (before?.bytesDown ?? 0));
    this.#learn({
      snapshot,
      given: addGiven(given, before, snapshot, now - at),
      pace: notePace(pace, snapshot, limits.duty),
    });
    if (now - this.#keptAt > KEEP_MS) this.#keep();
    if (ENDED.includes(snapshot.phase)) {
      this.#options.kept.visit = null;
      this.#keep();
    }
  }

  /** The sums of this visit join those that other tabs have written meanwhile. */
  #keep(): void {
    if (!this.model.value.asked) return;
    this.#keptAt = performance.now();
    this.#options.kept.setGiven(this.#run, this.model.value.given);
    this.#options.kept.addTraffic(today(), this.#unkept);
    this.#unkept = { up: 0, down: 0 };
  }

  /** Looks whether the limits still allow what goes on, and passes on what has changed. */
  #look(): void {
    const around = this.#watch.now();
    const { up, down } = this.#options.kept.today(today());
    const traffic = { up: up + this.#unkept.up, down: down + this.#unkept.down };
    const { limits, ruling: before, asked, ownerPaused, ended } = this.model.value;
    const situation = { ...around, sentToday: traffic.up, receivedToday: traffic.down };
    const ruling = decide(limits, situation, before);
    this.#learn({ ruling, today: traffic, onBattery: around.plugged === false });
    if (!asked || ended !== null) return;
    if (ruling.verdict === "finish") {
      this.#learn({ ended: ruling.why });
      return this.finish();
    }
    if (ruling.verdict === before.verdict || ownerPaused) return;
    this.#tell((peer) => ruling.verdict === "wait" ? peer.pause() : peer.resume());
  }
}

function today(): string {
  return dayOf(new Date());
}

function dateText(atMs: number): string {
  return new Date(atMs).toLocaleDateString("en", { day: "numeric", month: "long", year: "numeric" });
}
