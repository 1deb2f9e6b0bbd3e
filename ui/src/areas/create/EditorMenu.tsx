import { useQuery } from "@tanstack/react-query";
import { ExternalLink, FilePlus2, PencilRuler } from "lucide-react";
import { call, get } from "@/api/client";
import { stringify } from "@/api/json";
import { openEditor } from "@/jobs/open-editor";
import { Button, Menu, toastProblem } from "@/kit";
import { create as texts } from "@/texts/create";

// only the newest workflows; the others can be opened in the editor
const MAX_LISTED = 20;

/** Opens ComfyUI's editor, and adds workflows that were saved there. */
export function EditorMenu({ onChoose }: { onChoose: (file: File) => void }) {
  const { data } = useQuery({
    queryKey: ["editor-workflows"] as const,
    queryFn: ({ signal }) => get("/api/editor/workflows", { signal }),
    // saved in another tab
    refetchOnWindowFocus: "always",
  });
  const add = async (path: string) => {
    const address = path.split("/").map(encodeURIComponent).join("/");
    try {
      const { data: saved } = await call<{ graph: unknown }>("GET", `/api/editor/workflows/${address}`);
      onChoose(new File([stringify(saved.graph)], path.split("/").at(-1) ?? path, { type: "application/json" }));
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const saved = (data?.items ?? []).slice(0, MAX_LISTED);
  return (
    <Menu
      items={[
        [{ name: texts.editor.open, icon: ExternalLink, run: () => void openEditor() }],
        saved.map(({ path }) => ({
          name: texts.editor.add(path.replace(/\.json$/, "")),
          icon: FilePlus2,
          run: () => void add(path),
        })),
      ]}
    >
      <Button icon={PencilRuler} title={texts.editor.hint}>
        {texts.editor.name}
      </Button>
    </Menu>
  );
}
