// Form drafts per workflow, stored across navigation and reloads.

import { useSyncExternalStore } from "react";
import { get } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import type { File as StoredFile } from "@/api/types";
import { typeOf, upload } from "@/api/uploads";
import { readLocal, readSession, writeLocal, writeSession } from "@/lib/local-storage";
import { create as texts } from "@/texts/create";
import type { Texts } from "./inputs";

/** A chosen file. The upload starts at once; `id` is null until it is done. */
export interface DraftFile {
  /** React key. */
  key: string;
  id: string | null;
  name: string;
  mime: string;
  /** Preview URL. */
  url: string | null;
  /** Uploaded part, from 0 to 1. */
  part: number;
  problem: string | null;
  /** The stored file was deleted; the user must choose it again. */
  isGone?: boolean;
  /** The picture without its mask; null if it was deleted. Only of a masked picture. */
  original?: DraftFile | null;
}

export type WildcardMode = "off" | "random" | "all";

export interface Draft {
  texts: Texts;
  files: Readonly<Record<string, readonly DraftFile[]>>;
  /** Folder inside the input folder, instead of files. */
  folder: string | null;
  /** Whether each line is a prompt; null: yes, unless the default prompt has several lines. */
  byLine: boolean | null;
  negativesByLine: boolean;
  /** Seeds to restore when the user locks them again. */
  idleSeeds: Texts;
  tries: string;
  isPairwise: boolean;
  /** Values of swept fields, as typed, by key. */
  sweep: Texts;
  wildcards: WildcardMode;
  /** How a batch uses a locked seed. */
  seeds: "fixed" | "increment";
  label: string;
  outputFolder: string;
  priority: number;
  notify: string;
  /** The recalled job and its values. */
  from: { id: string; texts: Texts; label: string } | null;
}

export const EMPTY: Draft = {
  texts: {},
  files: {},
  folder: null,
  byLine: null,
  negativesByLine: false,
  idleSeeds: {},
  tries: "1",
  isPairwise: false,
  sweep: {},
  wildcards: "off",
  seeds: "increment",
  label: "",
  outputFolder: "",
  priority: 0,
  notify: "",
  from: null,
};

const drafts = new Map<string, Draft>();
const listeners = new Set<() => void>();
const storageKey = (slug: string): string => `create.draft.${slug}`;
let last = 0;
export function newFileKey(): string {
  last += 1;
  return `file-${last}`;
}

const storedFile = ({ id, name, mime, isGone, original }: DraftFile): object => ({
  id,
  name,
  mime,
  ...(isGone && { isGone }),
  ...(original !== undefined && { original: original && storedFile(original) }),
});

const restoredFile = (file: DraftFile): DraftFile => ({
  ...file,
  key: newFileKey(),
  url: null,
  part: 1,
  problem: file.isGone ? texts.form.gone([file.name]) : null,
  ...(file.original && { original: restoredFile(file.original) }),
});

/** A file that was deleted. */
export const goneFile = (name: string, mime: string): DraftFile =>
  restoredFile({ key: "", id: null, name, mime, url: null, part: 1, problem: null, isGone: true });

/** Without unfinished uploads and URLs. */
export function serializeDraft(draft: Draft): string {
  const files = Object.entries(draft.files).map(([key, given]) => [
    key,
    given.filter((each) => each.id !== null || each.isGone).map(storedFile),
  ]);
  return JSON.stringify({ ...draft, files: Object.fromEntries(files) });
}

/** Ignores unknown fields and invalid JSON. */
export function parseDraft(text: string | null): Draft {
  if (!text) return EMPTY;
  try {
    const found = JSON.parse(text) as Partial<Draft>;
    const files = Object.entries(found.files ?? {}).map(([key, given]) => [key, given.map(restoredFile)]);
    const known = Object.fromEntries(Object.entries(found).filter(([key]) => key in EMPTY));
    return { ...EMPTY, ...known, files: Object.fromEntries(files) };
  } catch {
    return EMPTY;
  }
}

export function draftOf(slug: string): Draft {
  let found = drafts.get(slug);
  if (!found) {
    // each tab has its own draft; a new tab starts with the latest one
    found = parseDraft(readSession(storageKey(slug)) ?? readLocal(storageKey(slug)));
    drafts.set(slug, found);
    for (const [key, given] of Object.entries(found.files)) {
      for (const each of given) {
        if (each.id !== null) void refreshFile(slug, key, each.id);
        if (each.original?.id) void findOriginal(slug, key, each.original.id);
      }
    }
  }
  return found;
}

export function changeDraft(slug: string, change: (draft: Draft) => Draft): void {
  const startNextUpload = change(draftOf(slug));
  drafts.set(slug, startNextUpload);
  const text = startNextUpload === EMPTY ? "" : serializeDraft(startNextUpload);
  writeSession(storageKey(slug), text);
  writeLocal(storageKey(slug), text || null);
  for (const each of listeners) each();
}

/** Returns the undo, if the draft had content. */
export function replaceDraft(slug: string, startNextUpload: Draft): (() => void) | null {
  const before = draftOf(slug);
  changeDraft(slug, () => startNextUpload);
  return serializeDraft(before) === serializeDraft(EMPTY) ? null : () => changeDraft(slug, () => before);
}

export const useDraft = (slug: string): Draft =>
  useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    () => draftOf(slug),
  );

const changeFiles = (slug: string, key: string, change: (given: readonly DraftFile[]) => readonly DraftFile[]): void =>
  changeDraft(slug, (draft) => ({ ...draft, files: { ...draft.files, [key]: change(draft.files[key] ?? []) } }));

const changeFile = (slug: string, key: string, file: string, change: Partial<DraftFile>): void =>
  changeFiles(slug, key, (given) => given.map((each) => (each.key === file ? { ...each, ...change } : each)));

/** Checks which files of a field were deleted, after the server refused them. */
export function recheckFiles(slug: string, key: string): void {
  for (const { id } of draftOf(slug).files[key] ?? []) if (id !== null) void refreshFile(slug, key, id);
}

/** Refreshes the URL of a stored file, or marks a deleted one. */
async function refreshFile(slug: string, key: string, id: string): Promise<void> {
  try {
    const found = await get("/api/videos/uploads/{file_id}", { path: { file_id: id } });
    changeFiles(slug, key, (given) =>
      given.map((each) => (each.id === id ? { ...each, url: found.poster_url ?? found.url } : each)),
    );
  } catch (thrown) {
    if (thrown instanceof Problem && thrown.status === 404) {
      changeFiles(slug, key, (given) => given.map((each) => (each.id === id ? goneFile(each.name, each.mime) : each)));
    }
  }
}

/** Notes that the original of a masked picture was deleted. */
async function findOriginal(slug: string, key: string, id: string): Promise<void> {
  try {
    await get("/api/videos/uploads/{file_id}", { path: { file_id: id } });
  } catch (thrown) {
    if (!(thrown instanceof Problem && thrown.status === 404)) return;
    changeFiles(slug, key, (given) =>
      given.map((each) => (each.original?.id === id ? { ...each, original: null } : each)),
    );
  }
}

const MAX_UPLOADS = 3;
const uploadQueue: (() => Promise<void>)[] = [];
let activeUploads = 0;

function startNextUpload(): void {
  const work = activeUploads < MAX_UPLOADS ? uploadQueue.shift() : undefined;
  if (!work) return;
  activeUploads += 1;
  void work().finally(() => {
    activeUploads -= 1;
    startNextUpload();
  });
  startNextUpload();
}

/** Uploads continue while another page is open. */
export function addFiles(slug: string, key: string, files: readonly File[], { isOne }: { isOne: boolean }): void {
  const chosen = isOne ? files.slice(-1) : files;
  const entries = chosen.map((file): [File, DraftFile] => [file, newDraftFile(file)]);
  changeFiles(slug, key, (given) => [
    ...(isOne ? [] : given.filter((each) => !each.isGone || !chosen.some(({ name }) => name === each.name))),
    ...entries.map(([, each]) => each),
  ]);
  changeDraft(slug, (draft) => ({ ...draft, folder: null }));
  for (const [file, entry] of entries) queueUpload(slug, key, file, entry);
}

const newDraftFile = (file: File): DraftFile => ({
  key: newFileKey(),
  id: null,
  name: file.name,
  mime: typeOf(file),
  url: URL.createObjectURL(file),
  part: 0,
  problem: null,
});

function queueUpload(slug: string, key: string, file: File, entry: DraftFile): void {
  uploadQueue.push(async () => {
    // removed before the upload started
    if (!draftOf(slug).files[key]?.some((each) => each.key === entry.key)) return;
    try {
      const found = await upload(file, { onProgress: (part) => changeFile(slug, key, entry.key, { part }) });
      changeFile(slug, key, entry.key, { id: found.id, part: 1 });
    } catch (thrown) {
      changeFile(slug, key, entry.key, { problem: sentence(thrown) });
    }
  });
  startNextUpload();
}

/** Puts a masked picture in the place of a file, and keeps the original. */
export function replaceFile(slug: string, key: string, replaced: string, file: File): void {
  const entry = newDraftFile(file);
  changeFiles(slug, key, (given) =>
    given.map((each) => (each.key === replaced ? { ...entry, original: each.original ?? each } : each)),
  );
  queueUpload(slug, key, file, entry);
}

/** Removes the mask of a file. */
export const restoreOriginal = (slug: string, key: string, masked: string): void =>
  changeFiles(slug, key, (given) => given.map((each) => (each.key === masked ? (each.original ?? each) : each)));

/** Adds a stored file. */
export async function addStored(slug: string, key: string, id: string, { isOne }: { isOne: boolean }): Promise<void> {
  const found = await get("/api/videos/uploads/{file_id}", { path: { file_id: id } });
  changeFiles(slug, key, (before) => [...(isOne ? [] : before.filter((each) => each.id !== id)), draftFileOf(found)]);
  changeDraft(slug, (draft) => ({ ...draft, folder: null }));
}

export const draftFileOf = (file: StoredFile & { url: string | null; poster_url?: string | null }): DraftFile => ({
  key: newFileKey(),
  id: file.id,
  name: file.original_filename ?? file.id,
  mime: file.mime_type,
  url: file.poster_url ?? file.url,
  part: 1,
  problem: null,
});

/** Replaces all inputs with one file and resets variations. */
export const withOnlyInput = (draft: Draft, key: string, given: DraftFile): Draft => ({
  ...draft,
  folder: null,
  tries: "1",
  files: { ...draft.files, [key]: [given] },
});

export function removeFile(slug: string, key: string, file: string): void {
  changeFiles(slug, key, (given) => given.filter((each) => each.key !== file));
}

export const clearFiles = (slug: string, key: string): void => changeFiles(slug, key, () => []);

export const pendingUploads = (draft: Draft): DraftFile[] =>
  Object.values(draft.files).flatMap((given) => given.filter((each) => each.id === null && !each.problem));
