// A run that the organizer has changed, with invitations and everything that deserves an alert. Pure and fixed.
import type { BanStatus, Invitations, OrganizerList } from "../peer/wire/invitations.ts";
import type { RunStatus } from "../peer/wire/status.ts";
import { losses, status } from "./fixtures_data.ts";
import type { AdminModel } from "./view_model_admin.ts";

const NOW = 1_700_000_000_000;
const HOUR_MS = 3_600_000;

const invitations: Invitations = {
  open: false,
  text: false,
  invitations: [
    {
      ...{ id: "i1", note: "row 3", seats: 3, expiresAt: NOW + 5 * HOUR_MS, ended: false },
      ...{ link: "https://shoal.example/#8d2kQ0Zt4JtV1mXo9aYbcw", peers: ["tab-4f21"] },
    },
    {
      ...{ id: "i2", note: "", seats: 1, expiresAt: NOW + 40 * 60_000, ended: false },
      ...{ link: "https://shoal.example/#Lw3rT5yU7iO9pA1sD3fGhJ", peers: ["tab-c377"] },
    },
    {
      ...{ id: "i3", note: "the substitute teacher", seats: 1, expiresAt: NOW - HOUR_MS, ended: true },
      ...{ link: "https://shoal.example/#Zx2cV4bN6mQ8wE0rT2yUiO", peers: [] },
    },
  ],
};

/** One point far above the twenty before it, the newest commit late, and one holder of stage 3. */
export const ordered: Partial<RunStatus> = {
  losses: [...losses(status.step - 1), { step: status.step, train: 4.2 }],
  trainLoss: 4.2,
  peers: status.peers.map((peer) => peer.id === "tab-c377" ? { ...peer, pin: 2 } : peer),
  disk: { freeBytes: 61_000_000, sizeBytes: 64_000_000_000, low: true },
  pace: { sinceCommitMs: 41_000, stepMs: 640 },
  stepsAtRisk: 41,
  safety: status.safety.map((stage, i) =>
    i === 2 ? { ...stage, redundancy: "none", holders: stage.holders.slice(0, 1), stepsAtRisk: 41 } : stage
  ),
  changes: [
    { step: 200, set: { learning_rate: 6e-4, min_lr: 6e-5 }, was: { learning_rate: 1e-3, min_lr: 1e-4 } },
    { step: 500, set: { schedule: "1f1b" } },
  ],
};

const bans: BanStatus[] = [
  { id: "b1", peer: "tab-a001", reason: "", until: null, by: "the organizer" },
  { id: "b2", peer: "tab-6bd0", reason: "not of this class", until: NOW + 25 * 60_000, by: "Ada" },
];

const organizers: OrganizerList = {
  ...{ you: "the organizer", first: true },
  organizers: [{ id: "o1", name: "Ada", link: "https://shoal.example/admin#qP7sD2fG9hJ4kL6zX8cV1b" }],
};

export const invited: Partial<AdminModel> = { invitations, bans, organizers, now: NOW };

/** As somebody sees it who was named. */
export const invitedByAnother: Partial<AdminModel> = {
  ...{ invitations: { open: true, invitations: [] }, bans: [], now: NOW },
  organizers: { you: "Ada", first: false, organizers: [{ id: "o1", name: "Ada" }] },
};
