// Private ways into a run as the organizer sees them. Plain JSON data; the coordinator's http/door.ts decides who comes in.

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
  invitations: InvitationStatus[];
}
