// Draws a mask: strokes over a picture, in pixels of the picture.

export interface Point {
  x: number;
  y: number;
}

export type MaskAction =
  | { kind: "stroke"; isErasing: boolean; size: number; points: readonly Point[] }
  | { kind: "invert" }
  | { kind: "clear" };

/** The color of the mask over the picture. */
const MASK_COLOR = [255, 77, 77] as const;

type Context = CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;

function drawStroke(context: Context, size: number, points: readonly Point[]): void {
  const [first, ...rest] = points;
  if (!first) return;
  context.lineCap = "round";
  context.lineJoin = "round";
  context.lineWidth = size;
  context.beginPath();
  context.moveTo(first.x, first.y);
  for (const { x, y } of rest) context.lineTo(x, y);
  context.stroke();
  // a line of zero length is not drawn
  context.beginPath();
  context.arc(first.x, first.y, size / 2, 0, 2 * Math.PI);
  context.fill();
}

/** Applies one action to a layer whose opaque pixels are masked. */
export function applyAction(context: Context, action: MaskAction): void {
  const { width, height } = context.canvas;
  context.save();
  context.fillStyle = `rgb(${MASK_COLOR.join(" ")})`;
  context.strokeStyle = context.fillStyle;
  if (action.kind === "clear") context.clearRect(0, 0, width, height);
  else if (action.kind === "invert") {
    // keeps the new pixels only where the layer is transparent
    context.globalCompositeOperation = "source-out";
    context.fillRect(0, 0, width, height);
  } else {
    context.globalCompositeOperation = action.isErasing ? "destination-out" : "source-over";
    drawStroke(context, action.size, action.points);
  }
  context.restore();
}

export interface LoadedPicture {
  picture: ImageData;
  /** The mask that the picture already has. */
  mask: ImageData;
}

async function pixelsOf(content: HTMLImageElement): Promise<ImageData> {
  // the pixels as ComfyUI reads them: rotated by their metadata, and without a color profile
  const bitmap = await createImageBitmap(content, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true }) as OffscreenCanvasRenderingContext2D;
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

/** Reads the colors of the original, and the mask of the masked file. */
export async function loadPicture(original: HTMLImageElement, masked: HTMLImageElement): Promise<LoadedPicture> {
  const picture = await pixelsOf(original);
  const current = original === masked ? picture : await pixelsOf(masked);
  const mask = new ImageData(picture.width, picture.height);
  if (current.width === picture.width && current.height === picture.height) {
    for (let index = 0; index < mask.data.length; index += 4) {
      mask.data.set([...MASK_COLOR, 255 - (current.data[index + 3] as number)], index);
    }
  }
  return { picture, mask };
}
