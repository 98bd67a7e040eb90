// A flat folder of small named files, the little that a store needs of a disk, a browser's private file system or memory.
// Not crash-safe by itself (store.ts is); each call is one step that a crash may cut in half.

/** Files are named by the store alone: letters, digits and dashes. */
export interface StoreFolder {
  /** The file's content; null if there is none. At most `bytesMax` bytes are read. */
  read(file: string, bytesMax: number): Promise<Uint8Array | null>;
  /** Writes the whole file; on return it is as durable as the platform allows. */
  write(file: string, bytes: Uint8Array): Promise<void>;
  remove(file: string): Promise<void>;
  /** Names of all files. */
  list(): Promise<string[]>;
  /** Gives up the folder, for instance its lock; the files stay. */
  close(): Promise<void>;
}

/** Lasts as long as the process: the stand-in where nothing may be written. */
export class MemoryFolder implements StoreFolder {
  readonly files = new Map<string, Uint8Array>();

  read(file: string, bytesMax: number): Promise<Uint8Array | null> {
    return Promise.resolve(this.files.get(file)?.slice(0, bytesMax) ?? null);
  }

  write(file: string, bytes: Uint8Array): Promise<void> {
    this.files.set(file, bytes.slice());
    return Promise.resolve();
  }

  remove(file: string): Promise<void> {
    this.files.delete(file);
    return Promise.resolve();
  }

  list(): Promise<string[]> {
    return Promise.resolve([...this.files.keys()]);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
