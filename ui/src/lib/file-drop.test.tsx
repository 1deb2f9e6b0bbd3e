import { act, fireEvent, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import {
  type DroppedFile,
  queueDroppedFiles,
  readDroppedFiles,
  useDroppedFiles,
  useIsDraggingFiles,
  useWindowFileDrop,
} from "./file-drop";

const file = (name: string) => new File([""], name);
const transfer = (...files: File[]) => ({ types: ["Files"], items: [], files }) as unknown as DataTransfer;
const names = (files: readonly DroppedFile[]) => files.map((each) => each.path);

function Window({ onDrop }: { onDrop: (files: DroppedFile[]) => void }) {
  useWindowFileDrop(onDrop);
  return useIsDraggingFiles() ? <p>Drop here</p> : null;
}

function Page({ onDrop }: { onDrop: (files: DroppedFile[]) => void }) {
  useDroppedFiles(onDrop);
  return null;
}

const drop = (...files: File[]) =>
  act(async () => void fireEvent(window, Object.assign(new Event("drop"), { dataTransfer: transfer(...files) })));

it("dropped files go to the page, or to the fallback if no page takes them", async () => {
  const [fallback, page] = [vi.fn(), vi.fn()];
  render(<Window onDrop={fallback} />);
  const { unmount } = render(<Page onDrop={page} />);
  await drop(file("a.png"));
  unmount();
  await drop(file("b.png"));
  expect(page.mock.calls.map(([files]) => names(files))).toEqual([["a.png"]]);
  expect(fallback.mock.calls.map(([files]) => names(files))).toEqual([["b.png"]]);
});

it("queued files go to the next page that opens, once", () => {
  const [first, second] = [vi.fn(), vi.fn()];
  queueDroppedFiles([{ file: file("a.png"), path: "a.png" }]);
  render(<Page onDrop={first} />);
  render(<Page onDrop={second} />);
  expect([first, second].map((each) => each.mock.calls.length)).toEqual([1, 0]);
});

it("dragging files over nested elements ends when they leave the window", () => {
  render(<Window onDrop={vi.fn()} />);
  const drag = (type: string) =>
    fireEvent(window, Object.assign(new Event(type), { dataTransfer: transfer(file("a.png")) }));
  drag("dragenter");
  drag("dragenter");
  drag("dragleave");
  expect(screen.queryByText("Drop here")).not.toBeNull();
  drag("dragleave");
  expect(screen.queryByText("Drop here")).toBeNull();
});

it("folders are read page by page, without hidden files, sorted by path", async () => {
  const entry = (name: string) => ({ name, isFile: true, file: (done: (found: File) => void) => done(file(name)) });
  const pages = [[entry("b10.png"), entry(".hidden")], [entry("b9.png")], []];
  const folder = {
    name: "shots",
    isFile: false,
    createReader: () => ({ readEntries: (done: (page: unknown[]) => void) => done(pages.shift() ?? []) }),
  };
  const given = { items: [{ webkitGetAsEntry: () => folder }], files: [] } as unknown as DataTransfer;
  expect(names(await readDroppedFiles(given))).toEqual(["shots/b9.png", "shots/b10.png"]);
});
