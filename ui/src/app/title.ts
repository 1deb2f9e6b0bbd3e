// The title of the tab, and its icon: both say how much there is to do.

import { useEffect } from "react";
import { common, isolated } from "@/texts/common";

let area = "";
let count = 0;

function show(): void {
  const name = area ? `${isolated(area)} · ${common.name}` : common.name;
  document.title = count ? `(${count}) ${name}` : name;
}

/** What the tab is called while the component is shown. */
export function useTitle(title: string): void {
  useEffect(() => {
    area = title;
    show();
  }, [title]);
}

const SIZE = 64;
let drawn = "";

/** How many jobs run or wait. */
export function useBadge(pending: number): void {
  useEffect(() => {
    count = pending;
    show();
    const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
    const text = pending > 99 ? "99" : pending ? String(pending) : "";
    if (!link || text === drawn) return;
    drawn = text;
    if (!text) {
      link.href = "/icon.svg";
      return;
    }
    const mark = new Image(SIZE, SIZE);
    mark.onload = () => draw(mark, text, (url) => text === drawn && use(link, url));
    mark.src = "/icon.svg";
  }, [pending]);
}

let used = "";

function use(link: HTMLLinkElement, url: string): void {
  link.href = url;
  if (used) URL.revokeObjectURL(used);
  used = url;
}

function draw(mark: HTMLImageElement, text: string, then: (url: string) => void): void {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.drawImage(mark, 0, 0, SIZE, SIZE);
  const width = text.length > 1 ? 42 : 32;
  pen.fillStyle = "#ff7d4d";
  pen.beginPath();
  pen.roundRect(SIZE - width, SIZE - 32, width, 32, 12);
  pen.fill();
  pen.fillStyle = "#1f0d05";
  pen.font = "bold 26px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(text, SIZE - width / 2, SIZE - 15);
  canvas.toBlob((blob) => blob && then(URL.createObjectURL(blob)));
}
