// One end of a link over real WebRTC that sends known frames and notes what arrives. The same in a tab and in Deno:
// only the WebRTC stack differs. No assertions here; notes begin with the link, so no early frame is missed.
import { patternFrame, untilOpen } from "../../peer/net/link_suite.ts";
import { SimplePeerLink, type WebRtcStack } from "../../peer/net/simple_peer.ts";
import { crc32c } from "../../peer/wire/crc32c.ts";

/** What one frame was, small enough to leave a tab. */
export interface FrameNote {
  bytes: number;
  crc: number;
}

export function noteOf(frame: Uint8Array): FrameNote {
  return { bytes: frame.length, crc: crc32c(frame) };
}

/** The frames that an end with this `salt` sends, in order. */
export function framesOf(sizes: readonly number[], salt: number): Uint8Array[] {
  return sizes.map((size, i) => patternFrame(size, salt + i));
}

export interface LinkEndOptions {
  initiator: boolean;
  stack: WebRtcStack;
  /** Carries text to the other end's signal(). */
  onsignal: (data: string) => void;
}

export class LinkEnd {
  readonly link: SimplePeerLink;
  #notes: FrameNote[] = [];
  #onNote: () => void = () => {};
  #opened: Promise<void>;

  constructor({ initiator, stack, onsignal }: LinkEndOptions) {
    this.link = new SimplePeerLink({ remote: "other", initiator, iceServers: [], stack, onsignal });
    this.link.onframe = (frame) => {
      this.#notes.push(noteOf(frame));
      this.#onNote();
    };
    this.#opened = untilOpen(this.link);
  }

  /** Sends its frames in one go; resolves to notes of the first `sizes.length` frames that the other end sent. */
  async exchange(sizes: readonly number[], salt: number): Promise<FrameNote[]> {
    await this.#opened;
    const arrived = this.#arrived(sizes.length);
    for (const frame of framesOf(sizes, salt)) this.link.send(frame, 1);
    return await arrived;
  }

  #arrived(count: number): Promise<FrameNote[]> {
    return new Promise((resolve, reject) => {
      this.link.onstate = (state, reason) =>
        state === "closed" && reject(new Error(`closed after ${this.#notes.length} of ${count}: ${reason}`));
      this.#onNote = () => this.#notes.length >= count && resolve(this.#notes.slice(0, count));
      this.#onNote();
    });
  }
}
