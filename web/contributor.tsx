// The contributor's page as components: each draws one screen of view_model_tab.ts and reports presses.
// No state and no network here; contributor_main.tsx binds them to a peer.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import {
  GivenPanel,
  type LimitActions,
  LimitsForm,
  LimitsPanel,
  NameField,
  WithdrawButton,
} from "./contributor_limits.tsx";
import type { ComponentChildren } from "preact";
import { Curve } from "./curve.tsx";
import { Badge, Facts, Fish, Frame, LoadingScreen, NoticeScreen, Ruler, Sample, ToneIcon } from "./parts.tsx";
import type { LiveView, NoticeView, TabScreen, WelcomeView } from "./view_model_tab.ts";
import type { VerbId } from "./view_model_tab_live.ts";

export interface ContributorActions extends LimitActions, Record<VerbId, () => void> {
  lend(): void;
  refuse(): void;
  /** The button of a notice: looks again, joins again, or reads again, as fits. */
  again(): void;
}

interface ContributorProps {
  screen: TabScreen;
  actions: ContributorActions;
  /** What tries the model, where everybody may; it is bound elsewhere. */
  tryIt?: ComponentChildren;
}

export function Contributor({ screen, actions, tryIt }: ContributorProps) {
  return (
    <Frame wide={screen.kind === "live"} announce={screen.announce}>
      <Screen screen={screen} actions={actions} tryIt={tryIt} />
    </Frame>
  );
}

function Screen({ screen, actions, tryIt }: ContributorProps) {
  switch (screen.kind) {
    case "loading":
      return <LoadingScreen title={screen.title} />;
    case "welcome":
      return <Welcome view={screen} actions={actions} />;
    case "notice":
      return (
        <>
          <TabNotice view={screen} actions={actions} />
          {tryIt}
        </>
      );
    case "live":
      return <Live view={screen} actions={actions} tryIt={tryIt} />;
  }
}

function TabNotice({ view, actions }: { view: NoticeView; actions: ContributorActions }) {
  return (
    <>
      <NoticeScreen notice={view} onButton={actions.again}>
        <Facts facts={view.facts} />
      </NoticeScreen>
      <p class="actions quietly">
        <button type="button" class="plain" onClick={actions.copyDiagnostics}>Copy diagnostics</button>
        {view.canWithdraw && <WithdrawButton withdraw={actions.withdraw} />}
      </p>
    </>
  );
}

function Welcome({ view, actions }: { view: WelcomeView; actions: ContributorActions }) {
  return (
    <section class="welcome">
      <h1>{view.title}</h1>
      <p class="lead">{view.lead}</p>
      <div class="terms">
        {view.terms.map((term) => (
          <section key={term.title}>
            <h2>{term.title}</h2>
            <p>{term.text}</p>
          </section>
        ))}
        <section>
          <h2>What will compute</h2>
          <p>{view.adapter}</p>
        </section>
      </div>
      <details class="panel first-limits">
        <summary>Set limits or a name first</summary>
        <LimitsForm view={view.limits} change={actions.change} />
        <NameField name={view.name} setName={actions.setName} />
      </details>
      {view.consent && <p class="quiet">{view.consent}</p>}
      {view.blocked && (
        <p class="risk">
          <ToneIcon tone="warn" /> <span>{view.blocked}</span>
        </p>
      )}
      <p class="actions">
        <button type="button" class="primary large" disabled={view.blocked !== ""} onClick={actions.lend}>
          Lend this computer
        </button>
        {view.agreed
          ? <WithdrawButton withdraw={actions.withdraw} />
          : <button type="button" class="plain" onClick={actions.refuse}>No, thank you</button>}
      </p>
      <p class="beside">Nothing runs before you press it. {view.limits.summary}</p>
    </section>
  );
}

function Live({ view, actions, tryIt }: Omit<ContributorProps, "screen"> & { view: LiveView }) {
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
        <Verbs view={view} actions={actions} />
      </section>
      <div class="columns">
        <Curve curve={view.curve} title="Loss: how far off the model’s guesses are" />
        <section class="panel" aria-labelledby="here-title">
          <h2 id="here-title">On this computer</h2>
          <Pace pace={view.pace} />
          {view.slow.map((sentence) => (
            <p class="risk" key={sentence}>
              <ToneIcon tone="warn" /> <span>{sentence}</span>
            </p>
          ))}
          <Facts facts={view.facts} />
        </section>
      </div>
      <div class="columns even">
        <LimitsPanel view={view} actions={actions} />
        <GivenPanel view={view} actions={actions} />
      </div>
      {view.sample && <Sample sample={view.sample} />}
      {tryIt}
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

/** Three ways to stop, from the gentlest to the quickest, each with what it costs. */
function Verbs({ view, actions }: { view: LiveView; actions: ContributorActions }) {
  return (
    <ul class="verbs" aria-label="Ways to stop">
      {view.verbs.map(({ id, label, cost, enabled }, index) => (
        <li key={index}>
          <button
            type="button"
            class={index === 0 ? "primary" : ""}
            disabled={!enabled}
            aria-describedby={`cost-${index}`}
            onClick={actions[id]}
          >
            {label}
          </button>
          <small id={`cost-${index}`}>{cost}</small>
        </li>
      ))}
    </ul>
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
