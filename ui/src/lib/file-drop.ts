// Files and folders that the user drops anywhere in the window.

import { useEffect } from "react";
import { Store, useStore } from "./store";
import { useLatest } from "./use-latest";

export interface DroppedFile {
  file: File;
  /** Path inside the dropped folder, such as `shots/day 1/a.png`. */
  path: string;
}

type Listener = (files: DroppedFile[]) => void;

let listeners: { readonly current: Listener }[] = [];
/** Files for the next page that accepts dropped files. */
let queued: DroppedFile[] = [];
const isDragging = new Store(false);

const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;

/** Reads all dropped files, including those in folders, sorted by path. */
export async function readDroppedFiles(transfer: DataTransfer): Promise<DroppedFile[]> {
  // collect the entries before the first await: the browser drops them when the event ends
  const entries = Array.from(transfer.items, (each) => each.webkitGetAsEntry?.() ?? null);
  if (entries.every((each) => each === null)) {
    return Array.from(transfer.files, (file) => ({ file, path: file.name }));
  }
  const found = await Promise.all(entries.filter((each) => each !== null).map((each) => readEntry(each, "")));
  return found.flat().sort((a, b) => a.path.localeCompare(b.path, undefined, { numeric: true }));
}

async function readEntry(entry: FileSystemEntry, folder: string): Promise<DroppedFile[]> {
  const path = folder + entry.name;
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    return [{ file, path }];
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const found: DroppedFile[] = [];
  // readEntries returns at most a hundred entries per call
  for (;;) {
    const page = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (!page.length) return found;
    const visible = page.filter((each) => !each.name.startsWith("."));
    found.push(...(await Promise.all(visible.map((each) => readEntry(each, `${path}/`)))).flat());
  }
}

/** Handles drops on the whole window. The shell mounts it once; `fallback` gets files that no page takes. */
export function useWindowFileDrop(fallback: Listener): void {
  const latest = useLatest(fallback);
  useEffect(() => {
    let depth = 0;
    const enter = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      depth += 1;
      isDragging.set(true);
    };
    const over = (event: DragEvent) => hasFiles(event) && event.preventDefault();
    const leave = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      depth = Math.max(0, depth - 1);
      if (!depth) isDragging.set(false);
    };
    const drop = async (event: DragEvent) => {
      depth = 0;
      isDragging.set(false);
      if (event.defaultPrevented || !hasFiles(event) || !event.dataTransfer) return;
      event.preventDefault();
      const files = await readDroppedFiles(event.dataTransfer);
      if (files.length) (listeners.at(-1) ?? latest).current(files);
    };
    addEventListener("dragenter", enter);
    addEventListener("dragover", over);
    addEventListener("dragleave", leave);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragenter", enter);
      removeEventListener("dragover", over);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", drop);
    };
  }, [latest]);
}

/** Keeps files for the next page that calls `useDroppedFiles`. */
export function queueDroppedFiles(files: DroppedFile[]): void {
  queued = files;
}

/** Receives all files dropped on the window while the component is mounted, and the files queued before. */
export function useDroppedFiles(listener: Listener): void {
  const latest = useLatest(listener);
  useEffect(() => {
    listeners = [...listeners, latest];
    if (queued.length) latest.current(queued.splice(0));
    return () => {
      listeners = listeners.filter((each) => each !== latest);
    };
  }, [latest]);
}

/** Whether the user drags files over the window. */
export const useIsDraggingFiles = (): boolean => useStore(isDragging);
