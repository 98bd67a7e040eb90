// WebGPU's flag values, as the specification fixes them. The Deno providers do not both define the global
// namespaces GPUBufferUsage and GPUMapMode, so nothing here reads them.

export const BufferUsage = {
  mapRead: 0x0001,
  copySrc: 0x0004,
  copyDst: 0x0008,
  uniform: 0x0040,
  storage: 0x0080,
} as const;

export const MAP_READ = 0x0001;
export const STAGE_COMPUTE = 0x4;

export function alignUp(value: number, align: number): number {
  return Math.ceil(value / align) * align;
}
