// A model's folder on a web server of this computer that answers whole files and byte ranges, and says what it was asked for; a test may
// answer in its place. Not the coordinator's own routes (coordinator/http/base.ts).
import { join } from "node:path";

export interface Asked {
  /** File's name. */
  name: string;
  /** Bytes [begin, end); null: the whole file. */
  range: { begin: number; end: number } | null;
}

export interface ModelServer extends AsyncDisposable {
  asked: Asked[];
  /** Of the folder. */
  url: string;
  host: string;
}

/** @param instead Answers in the server's place, told what it would have answered; null: that. */
export function serveModel(
  folder: string,
  instead: (asked: Asked, usual: () => Promise<Response>) => Promise<Response> | null = () => null,
): ModelServer {
  const asked: Asked[] = [];
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, (request) => {
    const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.get("range") ?? "") ?? [];
    const it: Asked = {
      name: decodeURIComponent(new URL(request.url).pathname.replace("/m/", "")),
      range: first === undefined ? null : { begin: Number(first), end: Number(last) + 1 },
    };
    asked.push(it);
    const usual = () => answer(folder, it);
    return instead(it, usual) ?? usual();
  });
  const host = `127.0.0.1:${server.addr.port}`;
  return { asked, host, url: `http://${host}/m/`, [Symbol.asyncDispose]: () => server.shutdown() };
}

async function answer(folder: string, { name, range }: Asked): Promise<Response> {
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    bytes = await Deno.readFile(join(folder, name));
  } catch {
    return new Response("there is none", { status: 404 });
  }
  if (range === null) return new Response(bytes);
  const { begin, end } = range;
  const headers = { "content-range": `bytes ${begin}-${end - 1}/${bytes.length}` };
  return new Response(bytes.subarray(begin, end), { status: 206, headers });
}
