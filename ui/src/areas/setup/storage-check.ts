import { here, post } from "@/api/client";
import { setup as texts } from "@/texts/setup";

export interface CheckResult {
  part: string;
  problem: string | null;
}

/** The server checks its own access to the storage. The browser checks uploads and downloads itself. */
export async function checkStorage(): Promise<{ url: string; checks: CheckResult[] }> {
  const { data } = await post("/api/admin/storage/check");
  const checks: CheckResult[] = [...data.checks];
  if (!data.upload_url || !data.download_url) return { url: data.url, checks };
  const problem = texts.storage.failedUpload(location.origin);
  const headers = Object.entries(data.upload_headers ?? {}).filter(([name]) => name.toLowerCase() !== "content-length");
  const sent = await fetch(here(data.upload_url), {
    method: "PUT",
    headers: Object.fromEntries(headers),
    body: new Blob([data.upload_text]),
  }).catch(() => null);
  checks.push({ part: "upload", problem: sent?.ok ? null : problem });
  if (!sent?.ok) return { url: data.url, checks };
  const text = await fetch(here(data.download_url))
    .then((each) => each.text())
    .catch(() => null);
  checks.push({ part: "download", problem: text === data.upload_text ? null : problem });
  return { url: data.url, checks };
}

/** Whether uploads and downloads work. The reported CORS rules ("browsers") do not matter if the browser succeeds. */
export const isStorageUsable = (checks: readonly CheckResult[]): boolean =>
  checks.some((each) => each.part === "download") &&
  checks.every((each) => each.part === "browsers" || each.problem === null);
