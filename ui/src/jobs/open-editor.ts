import { post } from "@/api/client";
import type { components } from "@/api/schema";
import { toastProblem } from "@/kit";

/** Open ComfyUI's editor in a new tab, with the workflow of a job or one of the user's own. */
export async function openEditor(target: Partial<components["schemas"]["NewEditorLink"]> = {}): Promise<void> {
  // browsers only open tabs right after a click
  const tab = window.open("", "_blank");
  try {
    const { data } = await post("/api/editor/links", { body: target });
    if (!tab) return window.location.assign(data.url);
    tab.opener = null;
    tab.location.replace(data.url);
  } catch (thrown) {
    tab?.close();
    toastProblem(thrown);
  }
}
