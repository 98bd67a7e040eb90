// Who comes in, who is kept out and who steers, as an organizer sees it. Plain JSON data; the coordinator's http/door.ts decides who comes in.

/** One invitation. */
export interface InvitationStatus {
  id: string;
  /** Whom it is for, in the organizer's words. */
  note: string;
  /** Computers that may be in with it at a time. */
  seats: number;
  /** ms since 1970. */
  expiresAt: number;
  ended: boolean;
  link: string;
  /** Who is in with it now. */
  peers: string[];
}

/** GET /api/invitations (admin). */
export interface Invitations {
  /** Whether the public link lets anybody in. */
  open: boolean;
  /** Whether whoever may join may write text with the model; absent: there is nothing to write with. */
  text?: boolean;
  invitations: InvitationStatus[];
}

/** A computer that may not come in. */
export interface BanStatus {
  id: string;
  /** The peer that was put out, as it was called. */
  peer: string;
  reason: string;
  /** ms since 1970; null = without end. */
  until: number | null;
  /** Who ordered it. */
  by: string;
}

/** GET /api/organizers (admin). */
export interface OrganizerList {
  /** Whose token asked. */
  you: string;
  /** Whether that is the first organizer, who alone names others and sees their links. */
  first: boolean;
  organizers: { id: string; name: string; link?: string }[];
}
