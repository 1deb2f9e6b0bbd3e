// Draws the grid of a sweep as one picture with labels.

import { here } from "@/api/client";
import type { Item } from "./item";
import { items } from "./item-store";
import {
  cellAt,
  cellRatio,
  GAP,
  LABEL_WIDTH,
  LINE,
  pictureSize,
  type SweepGrid,
  sliceNames,
  slicesOf,
  type View,
} from "./sweep-grid";

const FONT = "14px system-ui, sans-serif";
const BOLD = `600 ${FONT}`;
const PADDING = 6;
const MAX_LOADS = 6;

/** Cuts a text to a width. */
function truncate(context: CanvasRenderingContext2D, text: string, width: number): string {
  const line = text.replace(/\s+/g, " ");
  if (context.measureText(line).width <= width) return line;
  let length = line.length;
  while (length > 1 && context.measureText(`${line.slice(0, length)}…`).width > width) length -= 1;
  return `${line.slice(0, length)}…`;
}

async function loadPicture(item: Item): Promise<ImageBitmap | null> {
  const url = item.poster_url ?? (item.mime_type.startsWith("image/") ? item.url : null);
  if (!url) return null;
  const answer = await fetch(here(url));
  return answer.ok ? createImageBitmap(await answer.blob()) : null;
}

export interface Picture {
  blob: Blob;
  /** Outputs that could not be read. */
  unread: number;
}

/** Null if the grid is too large for a picture. Grids of more than two axes have a part for each slice, if they fit. */
export async function drawGrid(grid: SweepGrid, view: View, title: string): Promise<Picture | null> {
  const { axes } = grid;
  const [across, down] = [axes[view.x]?.values ?? [], view.y === null ? [""] : (axes[view.y]?.values ?? [])];
  const first = await items.all(grid.cells.filter((each) => each !== null).slice(0, 1));
  const ratio = cellRatio(first[0]);
  const all = slicesOf(axes, view);
  const whole = pictureSize(across.length, down.length, all.length, ratio);
  const slices = whole ? all : [view];
  const size = whole ?? pictureSize(across.length, down.length, 1, ratio);
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  if (!size || !context) return null;
  [canvas.width, canvas.height] = [size.width, size.height];
  context.fillStyle = "#fff";
  context.fillRect(0, 0, size.width, size.height);
  context.textBaseline = "middle";
  const write = (text: string, x: number, y: number, width: number, font = FONT) => {
    context.font = font;
    context.fillStyle = "#111";
    context.fillText(truncate(context, text, width - 2 * PADDING), x + PADDING, y + LINE / 2);
  };
  write(title, 0, 0, size.width, BOLD);
  const high = Math.round(size.cell / ratio);
  const places: { id: string; x: number; y: number }[] = [];
  for (const [index, slice] of slices.entries()) {
    const top = LINE + index * (2 * LINE + down.length * (high + GAP));
    const names = sliceNames(axes, slice).map(([name, value]) => `${name}: ${value}`);
    write([axes[view.x]?.name, ...names].join(" · "), LABEL_WIDTH, top, size.width - LABEL_WIDTH, BOLD);
    if (view.y !== null) write(axes[view.y]?.name ?? "", 0, top + LINE, LABEL_WIDTH, BOLD);
    const left = (column: number) => LABEL_WIDTH + column * (size.cell + GAP);
    for (const [column, text] of across.entries()) write(text, left(column), top + LINE, size.cell);
    for (const [row, text] of down.entries()) {
      const y = top + 2 * LINE + row * (high + GAP);
      write(text, 0, y + (high - LINE) / 2, LABEL_WIDTH);
      for (const column of across.keys()) {
        const id = cellAt(grid, slice, column, row);
        if (id) places.push({ id, x: left(column), y });
      }
    }
  }
  const unread = await drawAll(context, places, size.cell, high);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  return blob && { blob, unread };
}

async function drawAll(
  context: CanvasRenderingContext2D,
  places: readonly { id: string; x: number; y: number }[],
  width: number,
  height: number,
): Promise<number> {
  const found = new Map((await items.all(places.map((each) => each.id))).map((each) => [each.id, each]));
  const left = [...places];
  let unread = 0;
  const work = async () => {
    for (let place = left.shift(); place; place = left.shift()) {
      const item = found.get(place.id);
      // a picture may be gone, or on a server that does not let pages read it
      const picture = item ? await loadPicture(item).catch(() => null) : null;
      if (!picture) {
        unread += 1;
        continue;
      }
      const scale = Math.min(width / picture.width, height / picture.height);
      const [wide, high] = [picture.width * scale, picture.height * scale];
      context.drawImage(picture, place.x + (width - wide) / 2, place.y + (height - high) / 2, wide, high);
      picture.close();
    }
  };
  await Promise.all(Array.from({ length: MAX_LOADS }, work));
  return unread;
}
