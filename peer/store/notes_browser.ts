// Notes in the browser's IndexedDB, which workers have everywhere; each call opens and closes the database, because notes are
// read once per visit and an open one would stop a later version of the page from changing it.
import { SafeNotes } from "./notes.ts";

const DATABASE = "shoal-notes";
const TABLE = "notes";

/** Notes of this origin. */
export function openBrowserNotes(): SafeNotes {
  return new SafeNotes({
    async get(name) {
      const found: unknown = await inTable("readonly", (table) => table.get(name));
      return typeof found === "string" ? found : null;
    },
    set: async (name, text) => void await inTable("readwrite", (table) => table.put(text, name)),
  });
}

async function inTable<T>(
  mode: IDBTransactionMode,
  ask: (table: IDBObjectStore) => IDBRequest<T>,
): Promise<T> {
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE);
  const database = await settled(opening);
  try {
    return await settled(ask(database.transaction(TABLE, mode).objectStore(TABLE)));
  } finally {
    database.close();
  }
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Deletes all notes of this origin. */
export async function forgetBrowserNotes(): Promise<void> {
  await settled(indexedDB.deleteDatabase(DATABASE));
}
