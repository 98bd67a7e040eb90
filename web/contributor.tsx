// The contributor's page as components: each draws one screen of view_model_tab.ts and reports presses.
// No state and no network here; contributor_main.tsx binds them to a peer.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import { Curve } from "./curve.tsx";
import { Badge, Facts, Fish, Frame, LoadingScreen, NoticeScreen, Ruler, Sample, ToneIcon } from "./parts.tsx";
import type { LiveView, TabScreen, WelcomeView } from "./view_model_tab.ts";

export interface ContributorActions {
  lend(): void;
  pause(): void;
  resume(): void;
  finish(): void;
  leave(): void;
  reload(): void;
}

export function Contributor({ screen, actions }: { screen: TabScreen; actions: ContributorActions }) {
  return (
    <Frame wide={screen.kind === "live"} announce={screen.announce}>
      <Screen screen={screen} actions={actions} />
    </Frame>
  );
}

function Screen({ screen, actions }: { screen: TabScreen; actions: ContributorActions }) {
  switch (screen.kind) {
    case "loading":
      return <LoadingScreen title={screen.title} />;
    case "welcome":
      return <Welcome view={screen} onLend={actions.lend} />;
    case "notice":
      return (
        <NoticeScreen notice={screen} onButton={actions.reload}>
          <Facts facts={screen.facts} />
        </NoticeScreen>
      );
    case "live":
      return <Live view={screen} actions={actions} />;
  }
}

function Welcome({ view, onLend }: { view: WelcomeView; onLend: () => void }) {
  return (
    <section class="welcome">
      <h1>{view.title}</h1>
      <p class="lead">{view.lead}</p>
      <div class="terms">
        {view.sections.map((section) => (
          <section key={section.title}>
            <h2>{section.title}</h2>
            <p>{section.text}</p>
          </section>
        ))}
      </div>
      <p class="adapter">
        <span class="label">Graphics adapter</span>
        <span>{view.adapter ?? "Looking it up…"}</span>
      </p>
      <p class="actions">
        <button type="button" class="primary large" disabled={!view.ready} onClick={onLend}>
          Lend this computer
        </button>
        <span class="beside">Nothing runs before you press this.</span>
      </p>
    </section>
  );
}

function Live({ view, actions }: { view: LiveView; actions: ContributorActions }) {
  return (
    <div class="live">
      <section class="situation">
        <p class="phase">
          <Badge tone={view.tone}>{view.phase}</Badge>
        </p>
        <h1>{view.sentence}</h1>
        {view.standing && (
          <p class="risk">
            <ToneIcon tone={view.standing.tone} /> <span>{view.standing.text}</span>
          </p>
        )}
        <Stages view={view} />
        <Ruler progress={view.progress} />
        <Controls view={view} actions={actions} />
      </section>
      <div class="columns">
        <Curve curve={view.curve} title="Loss: how far off the model’s guesses are" />
        <section class="panel" aria-labelledby="here-title">
          <h2 id="here-title">On this computer</h2>
          <Pace pace={view.pace} />
          <Facts facts={view.facts} />
        </section>
      </div>
      {view.sample && <Sample sample={view.sample} />}
    </div>
  );
}

/** The pipeline as a line of fish; the reader's own is filled and says so in words. */
function Stages({ view }: { view: LiveView }) {
  if (view.stages.length === 0) return null;
  return (
    <ol class="stages" aria-label="Stages of the model, first to last">
      {view.stages.map((cell, index) => (
        <li key={index} class={cell.mine ? "mine" : ""} aria-current={cell.mine ? "true" : undefined}>
          <Fish />
          <span class="stage-name">Stage {index + 1}</span>
          <span class="stage-who">{cell.label}</span>
        </li>
      ))}
    </ol>
  );
}

function Controls({ view, actions }: { view: LiveView; actions: ContributorActions }) {
  return (
    <p class="actions">
      {view.paused
        ? <button type="button" class="primary" onClick={actions.resume}>Resume</button>
        : (
          <button type="button" class="primary" disabled={!view.canPause} onClick={actions.pause}>
            Pause
          </button>
        )}
      <button type="button" disabled={!view.canFinish} onClick={actions.finish}>
        Finish this step and leave
      </button>
      <button type="button" class="plain" onClick={actions.leave}>Leave now</button>
    </p>
  );
}

function Pace({ pace }: { pace: LiveView["pace"] }) {
  if (!pace) return <p class="quiet">Step times appear after the first step.</p>;
  return (
    <div class="pace">
      <p>{pace.sentence}</p>
      <svg viewBox="0 0 100 13" preserveAspectRatio="none" aria-hidden="true" focusable="false">
        <rect class="bar-group" x="0" y="0" width="100" height="5" />
        <rect class="bar-own" x="0" y="8" width={Math.max(1, pace.ownShare * 100)} height="5" />
      </svg>
      <p class="legend">
        <span class="key key-group">group {pace.group}</span>
        <span class="key key-own">here {pace.own}</span>
      </p>
    </div>
  );
}
