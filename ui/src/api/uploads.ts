import { common, size } from "@/texts/common";
import { here, post } from "./client";
import { Problem } from "./problem";
import type { File as StoredFile } from "./types";

const TYPES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  webp: "image/webp",
  gif: "image/gif",
  bmp: "image/bmp",
  avif: "image/avif",
  tif: "image/tiff",
  tiff: "image/tiff",
  mp4: "video/mp4",
  m4v: "video/mp4",
  mov: "video/quicktime",
  webm: "video/webm",
  mkv: "video/x-matroska",
  avi: "video/x-msvideo",
  mp3: "audio/mpeg",
  wav: "audio/wav",
  flac: "audio/flac",
  ogg: "audio/ogg",
  opus: "audio/ogg",
  m4a: "audio/mp4",
};

/** The MIME type of a file, guessed from its name if the browser does not know it; may be empty. */
export const typeOf = (file: File): string => file.type || TYPES[file.name.split(".").pop()?.toLowerCase() ?? ""] || "";

interface UploadOptions {
  /** from 0 to 1 */
  onProgress?: (part: number) => void;
  signal?: AbortSignal;
}

export async function upload(file: File, { onProgress, signal }: UploadOptions = {}): Promise<StoredFile> {
  if (await isTextNamedAsImage(file)) throw new Problem(common.problems.textNotImage(file.name), 422);
  const { data } = await begin(file, signal).catch((thrown: unknown) => {
    throw describeUploadError(file, thrown);
  });
  await send(here(data.upload_url), data.upload_headers, file, {
    ...(onProgress && { onProgress }),
    ...(signal && { signal }),
  });
  return data.file;
}

const BINARY_IMAGES = /^image\/(png|jpeg|gif|webp|bmp)$/;
const HEAD_BYTES = 4096;

/** Whether a file is text despite its image type, such as an error page that was saved as an image. */
async function isTextNamedAsImage(file: File): Promise<boolean> {
  if (!BINARY_IMAGES.test(typeOf(file)) || file.size === 0) return false;
  try {
    // `stream`: the last character may be incomplete
    const head = await file.slice(0, HEAD_BYTES).arrayBuffer();
    return !new TextDecoder("utf-8", { fatal: true }).decode(head, { stream: true }).includes("\0");
  } catch {
    return false;
  }
}

/** Adds the name of the file to an error, and makes sizes readable. */
export function describeUploadError(file: Pick<File, "name" | "size">, thrown: unknown): unknown {
  if (!(thrown instanceof Problem) || thrown.isAway) return thrown;
  const [, most] = /at most (\d+) bytes/.exec(thrown.message) ?? [];
  const text = most
    ? common.problems.tooLarge(file.name, size(file.size), size(Number(most)))
    : common.problems.refused(file.name, Object.values(thrown.errors).join(" ") || thrown.message);
  return new Problem(text, thrown.status, thrown.errors, thrown.kind);
}

const begin = (file: File, signal: AbortSignal | undefined) =>
  post("/api/videos/uploads", {
    body: { mime_type: typeOf(file), size: file.size, original_filename: file.name.slice(-255) },
    ...(signal && { signal }),
  });

// XMLHttpRequest, because fetch does not report upload progress
export function send(url: string, headers: Record<string, string>, file: File, { onProgress, signal }: UploadOptions) {
  return new Promise<void>((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", url);
    for (const [name, value] of Object.entries(headers)) {
      // browsers set this header and do not let scripts set it
      if (name.toLowerCase() !== "content-length") request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => onProgress?.(event.total ? event.loaded / event.total : 0);
    request.onload = () =>
      request.status < 300
        ? resolve()
        : reject(new Problem(common.problems.notUploaded(file.name, request.status), request.status));
    request.onerror = () => reject(new Problem(common.problems.notUploaded(file.name), 0));
    request.onabort = () => reject(new DOMException("", "AbortError"));
    signal?.addEventListener("abort", () => request.abort(), { once: true });
    if (signal?.aborted) reject(new DOMException("", "AbortError"));
    else request.send(file);
  });
}
