// The WGSL library files that kernels may import, and the host side of lib/dispatch.wgsl.
// Add a file here when a second kernel needs the same function; a kernel's own code stays in its own file.
import dispatchWgsl from "../../shaders/lib/dispatch.wgsl" with { type: "text" };
import halfWgsl from "../../shaders/lib/half.wgsl" with { type: "text" };
import matmulTileWgsl from "../../shaders/lib/matmul_tile.wgsl" with { type: "text" };
import matmulTileScalarWgsl from "../../shaders/lib/matmul_tile_scalar.wgsl" with { type: "text" };
import scaledWgsl from "../../shaders/lib/scaled.wgsl" with { type: "text" };
import sigmoidWgsl from "../../shaders/lib/sigmoid.wgsl" with { type: "text" };
import tileWgsl from "../../shaders/lib/tile.wgsl" with { type: "text" };

export const shaderLibrary: Readonly<Record<string, string>> = {
  "lib/dispatch.wgsl": dispatchWgsl,
  "lib/half.wgsl": halfWgsl,
  "lib/matmul_tile.wgsl": matmulTileWgsl,
  "lib/matmul_tile_scalar.wgsl": matmulTileScalarWgsl,
  "lib/scaled.wgsl": scaledWgsl,
  "lib/sigmoid.wgsl": sigmoidWgsl,
  "lib/tile.wgsl": tileWgsl,
};

/** WebGPU's default and usual limit of workgroups per dimension. */
export const WORKGROUPS_PER_DIMENSION_MAX = 65_535;

/** Spreads `count` workgroups over x and y so that neither passes the limit; the kernel drops the surplus. */
export function spreadWorkgroups(count: number): [number, number, number] {
  const y = Math.max(1, Math.ceil(count / WORKGROUPS_PER_DIMENSION_MAX));
  return [Math.max(1, Math.ceil(count / y)), y, 1];
}
