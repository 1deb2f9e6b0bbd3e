// The PNG of a masked picture. A canvas cannot write it: it loses the colors of transparent pixels, which ComfyUI needs.

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
/** 8 bits per channel, RGBA. */
const FORMAT = [8, 6, 0, 0, 0];

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_none, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});

function crc32(bytes: Uint8Array): number {
  let value = 0xffffffff;
  for (const byte of bytes) value = (CRC_TABLE[(value ^ byte) & 0xff] as number) ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

function chunk(name: string, content: Uint8Array): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(content.length + 12);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, content.length);
  bytes.set(new TextEncoder().encode(name), 4);
  bytes.set(content, 8);
  view.setUint32(content.length + 8, crc32(bytes.subarray(4, content.length + 8)));
  return bytes;
}

async function deflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const packed = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

/** Every row holds the differences to the row above (filter 2), which compress better. */
function filteredRows(pixels: Uint8ClampedArray, width: number, height: number): Uint8Array<ArrayBuffer> {
  const stride = width * 4;
  const rows = new Uint8Array((stride + 1) * height);
  for (let row = 0; row < height; row += 1) {
    const at = row * (stride + 1);
    rows[at] = row ? 2 : 0;
    for (let index = 0; index < stride; index += 1) {
      const here = pixels[row * stride + index] as number;
      rows[at + 1 + index] = row ? here - (pixels[(row - 1) * stride + index] as number) : here;
    }
  }
  return rows;
}

export interface Pixels {
  /** RGBA, row by row. */
  data: Uint8ClampedArray;
  width: number;
  height: number;
}

export async function encodePng({ data, width, height }: Pixels): Promise<Blob> {
  const header = new Uint8Array(13);
  const view = new DataView(header.buffer);
  view.setUint32(0, width);
  view.setUint32(4, height);
  header.set(FORMAT, 8);
  const content = await deflate(filteredRows(data, width, height));
  const parts = [chunk("IHDR", header), chunk("IDAT", content), chunk("IEND", new Uint8Array())];
  return new Blob([new Uint8Array(SIGNATURE), ...parts], { type: "image/png" });
}

/** Keeps the colors, and makes the alpha 0 where the mask is opaque: ComfyUI's mask is 1 − alpha. */
export function withMask(picture: Pixels, mask: Pixels): Pixels {
  const data = new Uint8ClampedArray(picture.data);
  for (let index = 3; index < data.length; index += 4) data[index] = 255 - (mask.data[index] as number);
  // the size of ImageData is not an own property, so it cannot be spread
  return { data, width: picture.width, height: picture.height };
}

/** Whether any pixel is masked. */
export const isMasked = (mask: Pixels): boolean => {
  for (let index = 3; index < mask.data.length; index += 4) if (mask.data[index]) return true;
  return false;
};
