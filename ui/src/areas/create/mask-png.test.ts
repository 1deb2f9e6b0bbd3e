// @vitest-environment node
import { expect, it } from "vitest";
import { encodePng, isMasked, type Pixels, withMask } from "./mask-png";

const pixels = (width: number, ...rgba: number[]): Pixels => ({
  data: new Uint8ClampedArray(rgba),
  width,
  height: rgba.length / 4 / width,
});

/** Reads the chunks of a PNG: name → content. */
async function chunksOf(png: Blob): Promise<Map<string, Uint8Array<ArrayBuffer>>> {
  const bytes = new Uint8Array(await png.arrayBuffer());
  const view = new DataView(bytes.buffer);
  const found = new Map<string, Uint8Array<ArrayBuffer>>();
  for (let at = 8; at < bytes.length; ) {
    const length = view.getUint32(at);
    found.set(new TextDecoder().decode(bytes.subarray(at + 4, at + 8)), bytes.slice(at + 8, at + 8 + length));
    at += length + 12;
  }
  return found;
}

async function rowsOf(packed: Uint8Array<ArrayBuffer>): Promise<number[]> {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return [...new Uint8Array(await new Response(stream).arrayBuffer())];
}

it("writes the size, the format and the colors of transparent pixels", async () => {
  const png = await encodePng(pixels(2, 10, 20, 30, 0, 40, 50, 60, 255));
  expect(png.type).toBe("image/png");
  const chunks = await chunksOf(png);
  expect([...chunks.keys()]).toEqual(["IHDR", "IDAT", "IEND"]);
  expect([...(chunks.get("IHDR") ?? [])]).toEqual([0, 0, 0, 2, 0, 0, 0, 1, 8, 6, 0, 0, 0]);
  expect(await rowsOf(chunks.get("IDAT") ?? new Uint8Array())).toEqual([0, 10, 20, 30, 0, 40, 50, 60, 255]);
});

it("writes every other row as the difference to the row above", async () => {
  const chunks = await chunksOf(await encodePng(pixels(1, 10, 20, 30, 255, 5, 20, 31, 255)));
  expect(await rowsOf(chunks.get("IDAT") ?? new Uint8Array())).toEqual([0, 10, 20, 30, 255, 2, 251, 0, 1, 0]);
});

it("ends with the checksum of an empty last chunk", async () => {
  const bytes = new Uint8Array(await (await encodePng(pixels(1, 1, 2, 3, 4))).arrayBuffer());
  expect([...bytes.slice(-4)]).toEqual([0xae, 0x42, 0x60, 0x82]);
});

it("makes masked pixels transparent and keeps their colors", () => {
  const masked = withMask(pixels(2, 1, 2, 3, 255, 4, 5, 6, 100), pixels(2, 0, 0, 0, 255, 0, 0, 0, 0));
  expect([...masked.data]).toEqual([1, 2, 3, 0, 4, 5, 6, 255]);
  expect([masked.width, masked.height]).toEqual([2, 1]);
});

it("finds a single masked pixel", () => {
  expect(isMasked(pixels(2, 9, 9, 9, 0, 9, 9, 9, 0))).toBe(false);
  expect(isMasked(pixels(2, 9, 9, 9, 0, 0, 0, 0, 1))).toBe(true);
});
