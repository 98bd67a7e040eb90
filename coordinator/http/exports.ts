// Exports over HTTP: GET /api/checkpoints/<name>/export/<format>, a GGUF file as it is, folders as a tar. Admin token only.
// Streamed with a known length, one tensor in memory at a time; the checkpoint is verified before the first byte leaves.
import type { Hono } from "hono";
import { join } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { factsOf, withMetrics } from "../export/facts.ts";
import { type Piece, readPieces, totalBytes } from "../export/pieces.ts";
import { exportedName, type ExportPlan, fileStem, planExport, readFormat } from "../export/plan.ts";
import { openWeights } from "../export/merged.ts";
import type { CheckpointSource } from "../export/source.ts";
import { tarPieces } from "../export/tar.ts";
import type { Shell } from "../shell.ts";
import { checkpointsDir, readTokenizer } from "../store/checkpoints.ts";
import { problem, unauthorized } from "./answers.ts";

export interface ExportRouteOptions {
  shell: Pick<Shell, "checkpoints">;
  outDir: string;
  runName: string;
  isAdmin(request: Request): boolean;
}

/** Each holds a tensor in memory and reads the disk; more would slow the run itself. */
const EXPORTS_MAX = 2;

export function addExportRoutes(app: Hono, options: ExportRouteOptions): void {
  const running = { count: 0 };
  app.get("/api/checkpoints/:name/export/:format", async (c) => {
    if (!options.isAdmin(c.req.raw)) return unauthorized();
    const { name, format } = c.req.param();
    // Only what this run wrote: a name is never a path.
    if (!options.shell.checkpoints.some((it) => it.name === name)) {
      return problem(404, "bad-checkpoint", "there is no such checkpoint; the page lists those there are");
    }
    if (running.count >= EXPORTS_MAX) {
      return problem(429, "usage", `${EXPORTS_MAX} exports are under way; wait until one is done`);
    }
    running.count++;
    let over = false;
    const release = () => {
      if (!over) running.count--;
      over = true;
    };
    try {
      const wanted = readFormat(format, c.req.query("dtype") ?? "f32");
      return await answer(options, { ...wanted, name, bodyless: c.req.method === "HEAD" }, release);
    } catch (error) {
      release();
      if (!(error instanceof ShoalError)) throw error;
      return problem(error.code === "usage" ? 400 : 422, error.code, error.message);
    }
  });
}

interface Wanted extends ReturnType<typeof readFormat> {
  name: string;
  /** Only the headers are asked for. */
  bodyless: boolean;
}

async function answer(
  { outDir, runName }: ExportRouteOptions,
  { name, format, dtype, bodyless }: Wanted,
  release: () => void,
): Promise<Response> {
  const source = await openWeights(join(checkpointsDir(outDir), name), format);
  const close = () => {
    source[Symbol.dispose]();
    release();
  };
  try {
    const plan = await planOf(source, { format, dtype, name: runName, outDir });
    const { file, pieces } = download(plan, `${fileStem(runName)}-${name}`);
    const headers = {
      "content-type": "application/octet-stream",
      "content-disposition": `attachment; filename="${file}"`,
      "content-length": String(totalBytes(pieces)),
    };
    if (!bodyless) return new Response(streamOf(pieces, close), { headers });
    close();
    return new Response(null, { headers });
  } catch (error) {
    close();
    throw error;
  }
}

async function planOf(
  source: CheckpointSource,
  { format, dtype, name, outDir }: Pick<Wanted, "format" | "dtype" | "name"> & { outDir: string },
): Promise<ExportPlan> {
  const { manifest } = source;
  const facts = await withMetrics(factsOf(manifest, null), outDir);
  const tokenizer = await readTokenizer(source.path, manifest);
  return planExport(source, { format, dtype, name, facts, vocab: manifest.vocab, tokenizer });
}

function download(plan: ExportPlan, stem: string): { file: string; pieces: readonly Piece[] } {
  const name = exportedName(stem, plan), { files } = plan;
  if (plan.kind === "file") return { file: name, pieces: files[0]!.pieces };
  return { file: `${name}.tar`, pieces: tarPieces(name, files) };
}

/** Reads a piece when the network has taken the one before. `close` is called once, however the stream ends. */
function streamOf(pieces: readonly Piece[], close: () => void): ReadableStream<Uint8Array<ArrayBuffer>> {
  const chunks = readPieces(pieces);
  return new ReadableStream({
    async pull(controller) {
      try {
        // A stream that is pulled must get something, or it is not pulled again.
        let next = await chunks.next();
        while (!next.done && next.value.length === 0) next = await chunks.next();
        if (!next.done) return controller.enqueue(next.value as Uint8Array<ArrayBuffer>);
        close();
        controller.close();
      } catch (error) {
        close();
        controller.error(error);
      }
    },
    cancel: close,
  }, { highWaterMark: 0 });
}
