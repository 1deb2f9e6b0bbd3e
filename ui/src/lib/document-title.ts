// The title and icon of the tab. Both show the number of pending jobs. The title also shows that the queue is paused.

import { useEffect } from "react";
import { common, isolated } from "@/texts/common";

let siteName: string = common.name;
let page = "";
let pendingCount = 0;
let isQueuePaused = false;

function updateTitle(): void {
  const name = page ? `${isolated(page)} · ${siteName}` : siteName;
  const pending = pendingCount ? `(${pendingCount}) ${name}` : name;
  document.title = isQueuePaused ? `${common.pause.mark} ${pending}` : pending;
}

/** Sets the name of the site, which ends every title. */
export function setSiteName(name: string): void {
  siteName = name;
  updateTitle();
}

/** Sets the title of the tab to the name of the page. */
export function useDocumentTitle(title: string): void {
  useEffect(() => {
    page = title;
    updateTitle();
  }, [title]);
}

const SIZE = 64;
let drawnText = "";
let iconUrl = "";

/** Shows how many jobs run or wait, and whether the queue is paused. */
export function usePendingBadge(pending: number, isPaused: boolean): void {
  useEffect(() => {
    pendingCount = pending;
    isQueuePaused = isPaused;
    updateTitle();
    const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
    const text = pending > 99 ? "99" : pending ? String(pending) : "";
    if (!link || text === drawnText) return;
    drawnText = text;
    if (!text) {
      link.href = "/icon.svg";
      return;
    }
    const icon = new Image(SIZE, SIZE);
    icon.onload = () => drawBadge(icon, text, (url) => text === drawnText && setIcon(link, url));
    icon.src = "/icon.svg";
  }, [pending, isPaused]);
}

function setIcon(link: HTMLLinkElement, url: string): void {
  link.href = url;
  if (iconUrl) URL.revokeObjectURL(iconUrl);
  iconUrl = url;
}

function drawBadge(icon: HTMLImageElement, text: string, onDrawn: (url: string) => void): void {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const context = canvas.getContext("2d");
  if (!context) return;
  context.drawImage(icon, 0, 0, SIZE, SIZE);
  const width = text.length > 1 ? 42 : 32;
  context.fillStyle = "#ff7d4d";
  context.beginPath();
  context.roundRect(SIZE - width, SIZE - 32, width, 32, 12);
  context.fill();
  context.fillStyle = "#1f0d05";
  context.font = "bold 26px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, SIZE - width / 2, SIZE - 15);
  canvas.toBlob((blob) => blob && onDrawn(URL.createObjectURL(blob)));
}
