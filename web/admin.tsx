// The admin page as components: the board of one run. Draws view_model_admin.ts and reports presses.
// No state and no network here; admin_main.tsx binds them to the coordinator.
/** @jsxRuntime automatic */
/** @jsxImportSource preact */
import type { ComponentChildren } from "preact";
import type { ExportActions } from "./admin_exports.tsx";
import { Gantt } from "./admin_gantt.tsx";
import { CheckpointList, EventLog, JoinPanel, PeerTable } from "./admin_lists.tsx";
import { Alerts, InvitationList, type OrderActions, Orders } from "./admin_orders.tsx";
import { People, type PeopleActions } from "./admin_people.tsx";
import { type PlanActions, PlanPanel } from "./admin_plan.tsx";
import { Recovery } from "./admin_recovery.tsx";
import { ConfirmButton } from "./confirm.tsx";
import { Curve } from "./curve.tsx";
import {
  Badge,
  Facts,
  Frame,
  LoadingScreen,
  NoticeScreen,
  Ruler,
  Sample,
  ScrollRegion,
  ToneIcon,
} from "./parts.tsx";
import type { AdminScreen, BoardView } from "./view_model_admin.ts";
import type { PipelineCell, PipelineView } from "./view_model_pipeline.ts";

export interface AdminActions extends OrderActions, ExportActions, PlanActions, PeopleActions {
  pause(): void;
  resume(): void;
  stop(): void;
  drain(peer: string): void;
  /** `stay`: one of STAYS of view_model_people.ts. */
  evict(peer: string, reason: string, stay: string): void;
  /** `stage`: counted from 1, or "any". */
  pin(peer: string, stage: string): void;
  verify(checkpoint: string): void;
  rollBack(checkpoint: string): void;
  remove(checkpoint: string): void;
  download(checkpoint: string, file: string): void;
  /** Keeps the step that is shown, or goes on to the newest. */
  hold(held: boolean): void;
  reload(): void;
}

interface AdminProps {
  screen: AdminScreen;
  actions: AdminActions;
  /** What tries the model; it is bound elsewhere. */
  tryIt?: ComponentChildren;
}

export function Admin({ screen, actions, tryIt }: AdminProps) {
  const toast = screen.kind === "board" && screen.note !== "";
  return (
    <Frame wide={screen.kind === "board"} announce={screen.announce} toast={toast}>
      {screen.kind === "loading" && <LoadingScreen title="Loading the run’s status…" />}
      {screen.kind === "notice" && <NoticeScreen notice={screen} onButton={actions.reload} />}
      {screen.kind === "board" && <Board view={screen} actions={actions} tryIt={tryIt} />}
    </Frame>
  );
}

function Board({ view, actions, tryIt }: Omit<AdminProps, "screen"> & { view: BoardView }) {
  const join = view.joinLink && <JoinPanel link={view.joinLink} onCopy={actions.copy} />;
  const { drain, evict, pin } = actions;
  const peers = <PeerTable peers={view.peers} onDrain={drain} onEvict={evict} onPin={pin} />;
  return (
    <div class="board">
      {view.stale && (
        <p class="stale">
          <ToneIcon tone="warn" /> {view.stale}
        </p>
      )}
      <Alerts alerts={view.alerts} />
      <Situation view={view} actions={actions} />
      {view.gathering && <div class="columns">{peers}{join}</div>}
      <div class="columns">
        <Curve curve={view.curve} title="Loss" />
        <section class="panel" aria-labelledby="readings-title">
          <h2 id="readings-title">Readings</h2>
          <Facts facts={view.readings} className="readings" />
        </section>
      </div>
      <PipelineMap pipeline={view.pipeline} />
      {view.gantt && <Gantt view={view.gantt} held={view.held} onHold={actions.hold} />}
      {view.plan && <PlanPanel view={view.plan} actions={actions} />}
      <Recovery view={view.recovery} />
      {!view.gathering && peers}
      <div class={view.gathering || !join ? "board" : "columns"}>
        <CheckpointList checkpoints={view.checkpoints} actions={actions} />
        {!view.gathering && join}
      </div>
      <div class="columns">
        <Orders orders={view.orders} current={view.current} actions={actions} />
        <InvitationList view={view.invitations} actions={actions} />
      </div>
      {view.people && <People view={view.people} actions={actions} />}
      {view.sample && <Sample sample={view.sample} />}
      {tryIt}
      <EventLog events={view.events} />
    </div>
  );
}

function Situation({ view, actions }: { view: BoardView; actions: AdminActions }) {
  const { toggle, canStop } = view.controls;
  return (
    <section class="situation">
      <p class="phase">
        <Badge tone={view.state.tone}>{view.state.word}</Badge>
        <span class="phase-reason">{view.state.reason}</span>
      </p>
      <h1>{view.title}</h1>
      <p class="subtitle">{view.subtitle}</p>
      <Ruler progress={view.progress} note={view.progress.percent} />
      <p class="risk">
        <ToneIcon tone={view.risk.tone} /> {view.risk.text}
      </p>
      <div class="actions">
        {toggle === "pause" && (
          <button type="button" class="primary" onClick={actions.pause}>Pause the run</button>
        )}
        {toggle === "resume" && (
          <button type="button" class="primary" onClick={actions.resume}>Resume the run</button>
        )}
        {canStop && (
          <ConfirmButton
            label="Stop the run"
            title="Stop this run?"
            text="The coordinator writes a checkpoint, sends every computer home and ends. You can resume from the checkpoint later."
            confirm="Stop the run"
            onConfirm={actions.stop}
          />
        )}
      </div>
    </section>
  );
}

function PipelineMap({ pipeline }: { pipeline: PipelineView }) {
  return (
    <section class="panel" aria-labelledby="pipeline-title">
      <h2 id="pipeline-title">Pipeline</h2>
      <p>{pipeline.summary}</p>
      {pipeline.columns.length > 0 && (
        <ScrollRegion label="Map of the pipeline">
          <table class="pipeline">
            <thead>
              <tr>
                <td></td>
                {pipeline.columns.map((column) => (
                  <th scope="col" key={column.title}>
                    {column.title}
                    <small>{column.holds}</small>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {pipeline.rows.map((row, index) => <ReplicaRow key={index} index={index} row={row} />)}
            </tbody>
          </table>
        </ScrollRegion>
      )}
      {pipeline.spare.length > 0 && <p class="quiet">In no stage: {pipeline.spare.join("; ")}.</p>}
    </section>
  );
}

function ReplicaRow({ index, row }: { index: number; row: (PipelineCell | null)[] }) {
  return (
    <tr>
      <th scope="row">Replica {index + 1}</th>
      {row.map((cell, column) => (
        <td key={column}>{cell ? <Holder cell={cell} /> : <span class="quiet">no replica</span>}</td>
      ))}
    </tr>
  );
}

function Holder({ cell }: { cell: PipelineCell }) {
  return (
    <div class={cell.present ? "holder" : "holder gone"}>
      <strong>{cell.peer}</strong>
      <span>{cell.adapter}</span>
      <small>{[cell.runtime, cell.work].filter(Boolean).join(" · ")}</small>
    </div>
  );
}
