import { afterEach, expect, it, vi } from "vitest";
import { applyAction, loadPicture, type MaskAction } from "./mask-layer";

afterEach(() => vi.unstubAllGlobals());

/** Draws on a context that records its calls with their composite operation. */
function callsOf(action: MaskAction): string[] {
  const calls: string[] = [];
  const context = {
    canvas: { width: 40, height: 30 },
    globalCompositeOperation: "source-over",
    lineWidth: 1,
  } as Record<string, unknown>;
  for (const name of ["save", "restore", "beginPath"]) context[name] = () => calls.push(name);
  for (const name of ["clearRect", "fillRect", "moveTo", "lineTo"]) {
    context[name] = (...numbers: number[]) =>
      calls.push(`${name} ${numbers.join(" ")} ${String(context.globalCompositeOperation)}`);
  }
  context.stroke = () => calls.push(`stroke ${String(context.lineWidth)} ${String(context.globalCompositeOperation)}`);
  context.arc = (x: number, y: number, radius: number) => calls.push(`arc ${x} ${y} ${radius}`);
  context.fill = () => calls.push(`fill ${String(context.globalCompositeOperation)}`);
  applyAction(context as unknown as CanvasRenderingContext2D, action);
  expect(calls[0]).toBe("save");
  expect(calls.at(-1)).toBe("restore");
  return calls.filter((each) => !["save", "restore", "beginPath"].includes(each));
}

const points = [
  { x: 5, y: 6 },
  { x: 7, y: 8 },
];

it("draws a stroke of the brush's size with a dot at its start", () => {
  expect(callsOf({ kind: "stroke", isErasing: false, size: 10, points })).toEqual([
    "moveTo 5 6 source-over",
    "lineTo 7 8 source-over",
    "stroke 10 source-over",
    "arc 5 6 5",
    "fill source-over",
  ]);
});

it("removes the mask under the eraser, even for a single click", () => {
  const calls = callsOf({ kind: "stroke", isErasing: true, size: 4, points: points.slice(0, 1) });
  expect(calls).toContain("arc 5 6 2");
  expect(calls.at(-1)).toBe("fill destination-out");
});

it("draws nothing for a stroke without points", () => {
  expect(callsOf({ kind: "stroke", isErasing: false, size: 4, points: [] })).toEqual([]);
});

it("inverts and clears the whole layer", () => {
  expect(callsOf({ kind: "invert" })).toEqual(["fillRect 0 0 40 30 source-out"]);
  expect(callsOf({ kind: "clear" })).toEqual(["clearRect 0 0 40 30 source-over"]);
});

/** Pictures whose pixels are given instead of decoded. */
function stubPictures(pictures: Map<unknown, { width: number; data: number[] }>): void {
  class Data {
    data: Uint8ClampedArray;
    constructor(
      readonly width: number,
      readonly height: number,
    ) {
      this.data = new Uint8ClampedArray(width * height * 4);
    }
  }
  vi.stubGlobal("ImageData", Data);
  vi.stubGlobal("createImageBitmap", async (content: unknown) => {
    const { width, data } = pictures.get(content) ?? { width: 0, data: [] };
    return { width, height: data.length / 4 / width, data, close: () => undefined };
  });
  vi.stubGlobal(
    "OffscreenCanvas",
    class {
      drawn: number[] = [];
      constructor(
        readonly width: number,
        readonly height: number,
      ) {}
      getContext() {
        return {
          drawImage: ({ data }: { data: number[] }) => {
            this.drawn = data;
          },
          getImageData: () => ({ width: this.width, height: this.height, data: this.drawn }),
        };
      }
    },
  );
}

it("reads the mask from the transparent pixels of the masked file", async () => {
  const [original, masked] = [new Image(), new Image()];
  stubPictures(
    new Map([
      [original, { width: 2, data: [1, 2, 3, 255, 4, 5, 6, 255] }],
      [masked, { width: 2, data: [1, 2, 3, 0, 4, 5, 6, 255] }],
    ]),
  );
  const { picture, mask } = await loadPicture(original, masked);
  expect([...picture.data]).toEqual([1, 2, 3, 255, 4, 5, 6, 255]);
  expect([mask.data[3], mask.data[7]]).toEqual([255, 0]);
});

it("starts without a mask if the masked file has another size", async () => {
  const [original, masked] = [new Image(), new Image()];
  stubPictures(
    new Map([
      [original, { width: 2, data: [1, 2, 3, 255, 4, 5, 6, 255] }],
      [masked, { width: 1, data: [1, 2, 3, 0] }],
    ]),
  );
  const { mask } = await loadPicture(original, masked);
  expect([...mask.data]).toEqual([0, 0, 0, 0, 0, 0, 0, 0]);
});
