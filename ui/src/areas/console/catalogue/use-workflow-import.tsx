// Imports dropped files as workflows.

import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { call, get } from "@/api/client";
import { type Missing, Problem, sentence } from "@/api/problem";
import { typeOf, upload } from "@/api/uploads";
import { classifyFiles } from "@/areas/create/classify-files";
import { Button, Dialog, toast } from "@/kit";
import { useDroppedFiles } from "@/lib/file-drop";
import { useLatest } from "@/lib/use-latest";
import { common } from "@/texts/common";
import { workflows as texts } from "@/texts/console-workflows";
import { sheet } from "../shared/sheet";
import { createWithFreeSlug, keys, type Workflow } from "./queries";
import { slugOf } from "./slugs";

interface Refused {
  name: string;
  problem: string;
  missing: readonly Missing[];
}

interface WorkflowImport {
  take: (files: readonly File[]) => void;
  isBusy: boolean;
  dialog: ReactNode;
}

/** Null if the file contains no workflow. */
async function readEmbeddedWorkflow(file: File): Promise<unknown> {
  const { id } = await upload(file);
  return (await get("/api/admin/uploads/{file_id}/workflow", { path: { file_id: id } })).graph ?? null;
}

/** Workflows in the files, and why other files were rejected. */
export async function readWorkflows(
  files: readonly File[],
  carried: (file: File) => Promise<unknown> = readEmbeddedWorkflow,
) {
  const graphs: { name: string; graph: unknown }[] = [];
  const refused: Refused[] = [];
  const refuse = (name: string, problem: string) => refused.push({ name, problem, missing: [] });
  // one by one: each rejected file gets its reason
  for (const file of files) {
    const sorted = await classifyFiles([file]);
    graphs.push(...sorted.graphs);
    for (const name of sorted.invalidJson) refuse(name, texts.notJson);
    for (const name of sorted.notWorkflows) refuse(name, texts.notWorkflow);
    for (const name of sorted.unsupported) refuse(name, texts.noUse);
    for (const each of sorted.media) {
      try {
        const graph = await carried(each);
        if (graph) graphs.push({ name: each.name, graph });
        else refuse(each.name, texts.noWorkflow);
      } catch (thrown) {
        refuse(each.name, sentence(thrown));
      }
    }
  }
  return { graphs, refused };
}

export const acceptedFiles = ".json,image/*,video/*,audio/*";

export function useWorkflowImport(): WorkflowImport {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [refused, setRefused] = useState<readonly Refused[]>([]);
  const [isBusy, setBusy] = useState(false);
  const [first = null] = refused;

  const takeAll = async (files: readonly File[]) => {
    setBusy(true);
    const [some] = files;
    if (some && /^(image|video|audio)\//.test(typeOf(some))) toast({ text: texts.reading(some.name) });
    const found = await readWorkflows(files);
    const made: Workflow[] = [];
    for (const { name, graph } of found.graphs) {
      const plain = name.replace(/\.\w+$/, "").slice(0, 200) || "workflow";
      try {
        const { data } = await createWithFreeSlug(slugOf(plain), (slug) =>
          call<Workflow>("POST", "/api/admin/workflows", { slug, name: plain, graph }),
        );
        made.push(data);
      } catch (thrown) {
        const missing = thrown instanceof Problem ? thrown.missing : [];
        found.refused.push({ name, problem: sentence(thrown), missing });
      }
    }
    setRefused((before) => [...before, ...found.refused]);
    setBusy(false);
    if (!made.length) return;
    await client.invalidateQueries({ queryKey: keys.workflows });
    const [only] = made;
    toast({ text: made.length === 1 && only ? texts.added(only.name) : texts.addedMany(made.length), tone: "good" });
    if (made.length === 1 && only && !found.refused.length)
      void navigate({ to: "/console/workflows/$slug", params: { slug: only.slug } });
  };
  const take = (files: readonly File[]) => void takeAll(files);
  const latestTake = useLatest(take);
  useDroppedFiles((files) => latestTake.current(files.map((each) => each.file)));

  const close = () => setRefused((before) => before.slice(1));
  const dialog = first && (
    <Dialog
      isOpen
      onClose={close}
      title={texts.notAdded(first.name)}
      about={first.problem}
      actions={
        <Button look="primary" onClick={close}>
          {common.close}
        </Button>
      }
    >
      {first.missing.length > 0 && <MissingList missing={first.missing} advice={texts.missing} />}
    </Dialog>
  );
  return { take, isBusy, dialog };
}

export const MissingList = ({ missing, advice }: { missing: readonly Missing[]; advice: string }) => (
  <>
    <ul className={sheet.list}>
      {missing.map((each) => (
        <li key={`${each.kind} ${each.name}`}>
          <code>{each.name}</code>
          <span className={sheet.faint}>
            {texts.missingOn(texts.missingKinds[each.kind] ?? each.kind, each.workers, each.on)}
          </span>
        </li>
      ))}
    </ul>
    <p className={sheet.muted}>{advice}</p>
  </>
);
