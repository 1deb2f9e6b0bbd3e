// Files and folders that are dropped anywhere in the window.

import { useEffect, useRef, useSyncExternalStore } from "react";

/** A file, and where it lay in the folder that was dropped: `shots/day 1/a.png`. */
export interface Dropped {
  file: File;
  path: string;
}

type Listener = (files: Dropped[]) => void;

let listeners: { current: Listener }[] = [];
let isOver = false;
const watching = new Set<() => void>();

function setOver(next: boolean): void {
  if (next === isOver) return;
  isOver = next;
  for (const each of watching) each();
}

const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;

/** All files in what was dropped, those in folders included, by their names. */
export async function filesIn(transfer: DataTransfer): Promise<Dropped[]> {
  // entries must be taken before the first wait: the browser forgets them after the event
  const entries = Array.from(transfer.items, (each) => each.webkitGetAsEntry?.() ?? null);
  if (entries.every((each) => each === null)) {
    return Array.from(transfer.files, (file) => ({ file, path: file.name }));
  }
  const found = await Promise.all(entries.filter((each) => each !== null).map((each) => within(each, "")));
  return found.flat().sort((a, b) => a.path.localeCompare(b.path, undefined, { numeric: true }));
}

async function within(entry: FileSystemEntry, folder: string): Promise<Dropped[]> {
  const path = folder + entry.name;
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    return [{ file, path }];
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const found: Dropped[] = [];
  // a reader hands out a hundred at a time
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found;
    const visible = some.filter((each) => !each.name.startsWith("."));
    found.push(...(await Promise.all(visible.map((each) => within(each, `${path}/`)))).flat());
  }
}

/** Listen on the whole window; the shell does it once. */
export function useDropping(onNobody: Listener): void {
  const nobody = useRef(onNobody);
  nobody.current = onNobody;
  useEffect(() => {
    let depth = 0;
    const enter = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      depth += 1;
      setOver(true);
    };
    const over = (event: DragEvent) => hasFiles(event) && event.preventDefault();
    const leave = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      depth = Math.max(0, depth - 1);
      if (!depth) setOver(false);
    };
    const drop = async (event: DragEvent) => {
      depth = 0;
      setOver(false);
      if (event.defaultPrevented || !hasFiles(event) || !event.dataTransfer) return;
      event.preventDefault();
      const files = await filesIn(event.dataTransfer);
      if (files.length) (listeners.at(-1) ?? nobody).current(files);
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
  }, []);
}

let kept: Dropped[] = [];

/** Files for the next one who asks, where the area that wants them is opened first. */
export const keepDropped = (files: Dropped[]): void => {
  kept = files;
};

/** What is dropped anywhere while the component is shown, and what was dropped to open it. */
export function useDropped(listener: Listener): void {
  const newest = useRef(listener);
  newest.current = listener;
  useEffect(() => {
    listeners = [...listeners, newest];
    if (kept.length) newest.current(kept.splice(0));
    return () => {
      listeners = listeners.filter((each) => each !== newest);
    };
  }, []);
}

/** Whether files are held over the window. */
export const useIsOver = (): boolean =>
  useSyncExternalStore(
    (listener) => {
      watching.add(listener);
      return () => void watching.delete(listener);
    },
    () => isOver,
  );
