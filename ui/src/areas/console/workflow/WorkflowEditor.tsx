import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { Download, Ellipsis, PencilRuler, Sparkles, Trash2, Upload } from "lucide-react";
import { useMemo, useRef, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { FormView } from "@/areas/create/FormView";
import { useForm } from "@/areas/create/form";
import { openEditor } from "@/jobs/open-editor";
import { Button, ErrorCard, IconButton, Menu, toast } from "@/kit";
import { Header } from "@/kit/Header";
import { Tabs } from "@/kit/Tabs";
import { useDroppedFiles } from "@/lib/file-drop";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { shared } from "@/texts/console-shared";
import { workflow as texts } from "@/texts/console-workflows";
import { job } from "@/texts/job";
import { previewOf } from "../catalogue/form-preview";
import { validateProperty } from "../catalogue/property-validation";
import { keys, type Workflow } from "../catalogue/queries";
import { acceptedFiles, readWorkflows } from "../catalogue/use-workflow-import";
import { BackTo, Section, Sheet, State, sheet } from "../shared/sheet";
import { useUnsavedChanges } from "../shared/use-unsaved-changes";
import { useVersion } from "../shared/use-version";
import { Builder } from "./Builder";
import { changesOf, errorsByProperty } from "./changes";
import { DeleteWorkflowDialog } from "./DeleteWorkflowDialog";
import { download } from "./download-json";
import { ReplaceGraphDialog } from "./ReplaceGraphDialog";
import { Settings } from "./Settings";
import { TestRun } from "./TestRun";
import { Versions } from "./Versions";
import { Workers } from "./Workers";
import styles from "./workflow.module.css";

export function WorkflowEditor({ before }: { before: Workflow }) {
  const { slug } = before;
  const client = useQueryClient();
  const navigate = useNavigate();
  const { tab = "form" } = useSearch({ from: "/console/workflows/$slug" });
  const [edited, setEdited] = useState<Partial<Workflow>>({});
  const [isDeleting, setDeleting] = useState(false);
  const [newGraph, setNewGraph] = useState<{ name: string; graph: unknown } | null>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const now: Workflow = { ...before, ...edited };
  const changes = changesOf(before, edited);
  const isDirty = Object.keys(changes).length > 0;
  const leaving = useUnsavedChanges({ isDirty });
  const versioned = useVersion(before, isDirty);
  const wrong = now.properties.filter((each) => Object.keys(validateProperty(each)).length > 0).length;
  const change = (part: Partial<Workflow>) => setEdited((was) => ({ ...was, ...part }));

  const save = useMutation({
    mutationFn: async () => {
      const path = `/api/admin/workflows/${encodeURIComponent(slug)}`;
      const refetch = () => client.refetchQueries({ queryKey: keys.workflow(slug), exact: true });
      const saved = await versioned((version) => call<Workflow>("PATCH", path, changes, undefined, version), refetch);
      return saved.data;
    },
    onSuccess: (data) => {
      client.setQueryData(keys.workflow(slug), data);
      setEdited({});
      // includes its versions
      void client.invalidateQueries({ queryKey: keys.workflow(slug) });
      void client.invalidateQueries({ queryKey: keys.workflows });
      void client.invalidateQueries({ queryKey: keys.fitting(slug) });
    },
  });
  const errors = save.error instanceof Problem ? save.error.errors : {};
  const saveNow = async () => {
    try {
      await save.mutateAsync();
      toast({ text: shared.saved, tone: "good" });
      return true;
    } catch {
      return false;
    }
  };

  const take = async (file: File | undefined) => {
    if (!file) return;
    const { graphs, refused } = await readWorkflows([file]);
    for (const { name, problem } of refused) toast({ text: `${name}: ${problem}`, tone: "bad" });
    if (graphs[0]) setNewGraph(graphs[0]);
  };
  useDroppedFiles((files) => void take(files[0]?.file));

  const preview = useMemo(
    () => previewOf({ slug, name: now.name, mime: now.output_mime_type, tokens: 0 }, now.properties),
    [slug, now.name, now.output_mime_type, now.properties],
  );
  const form = useForm(preview);
  const { me } = useSession();

  return (
    <>
      <Header
        title={now.name}
        actions={
          <>
            {isDirty && (
              <Button look="quiet" onClick={() => setEdited({})}>
                {shared.discard}
              </Button>
            )}
            <Menu
              items={[
                [
                  {
                    name: texts.makeEffect,
                    icon: Sparkles,
                    run: () => void navigate({ to: "/console/effects", search: { workflow: slug, open: "new" } }),
                  },
                  ...(me.has_editor
                    ? [{ name: job.openInEditor, icon: PencilRuler, run: () => void openEditor({ catalogue: slug }) }]
                    : []),
                  { name: texts.download, icon: Download, run: () => download(`${slug}.json`, now.graph) },
                  { name: texts.replace, icon: Upload, run: () => chooser.current?.click() },
                ],
                [{ name: shared.delete, icon: Trash2, isDanger: true, run: () => setDeleting(true) }],
              ]}
            >
              <IconButton icon={Ellipsis} name={common.more} />
            </Menu>
            <Button
              look="primary"
              disabled={!isDirty || wrong > 0}
              isBusy={save.isPending}
              onClick={() => void saveNow()}
            >
              {shared.save}
            </Button>
          </>
        }
      >
        <BackTo to="/console/workflows" name={console_.pages.workflows} />
        <State tone={now.is_active ? "good" : "idle"}>{now.is_active ? shared.active : shared.inactive}</State>
        {isDirty && <State tone="warn">{shared.unsaved}</State>}
      </Header>
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={texts.replace}
        accept={acceptedFiles}
        onChange={(event) => {
          void take(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
      <Sheet>
        {save.error && <ErrorCard title={sentence(save.error)} />}
        {wrong > 0 && <ErrorCard tone="warn" title={texts.problems.some(wrong)} />}
        {before.warnings.length > 0 && (
          <ErrorCard tone="warn" title={texts.warnings}>
            <ul>
              {before.warnings.map((each) => (
                <li key={each}>{each}</li>
              ))}
            </ul>
          </ErrorCard>
        )}
        <Tabs
          name={texts.tabsName}
          value={tab}
          onChange={(next) =>
            void navigate({
              to: "/console/workflows/$slug",
              params: { slug },
              search: next === "form" ? {} : { tab: next },
              replace: true,
            })
          }
          tabs={[
            {
              value: "form",
              name: texts.tabs.form,
              content: (
                <div className={sheet.columns}>
                  <Builder
                    built={{ graph: now.graph, properties: now.properties }}
                    onChange={({ graph, properties }) => change({ graph, properties: [...properties] })}
                    problems={errorsByProperty(now, errors)}
                  />
                  <div className={styles.side}>
                    <Section title={texts.preview.title} about={texts.preview.about}>
                      <div className={styles.preview}>
                        <FormView form={form} found={null} folderProblem={null} isPlain />
                      </div>
                    </Section>
                    <TestRun slug={slug} form={form} isDirty={isDirty} save={saveNow} />
                  </div>
                </div>
              ),
            },
            {
              value: "workers",
              name: texts.tabs.workers,
              content: (
                <div className={sheet.column}>
                  <Workers slug={slug} />
                </div>
              ),
            },
            {
              value: "settings",
              name: texts.tabs.settings,
              content: (
                <div className={sheet.column}>
                  <Settings workflow={now} onChange={change} problems={errors} />
                </div>
              ),
            },
            {
              value: "versions",
              name: texts.tabs.versions,
              content: (
                <Versions
                  slug={slug}
                  onBringBack={(version) => {
                    change(version);
                    toast({ text: texts.versions.restored });
                  }}
                />
              ),
            },
          ]}
        />
      </Sheet>
      {newGraph && (
        <ReplaceGraphDialog
          slug={slug}
          newGraph={newGraph}
          onClose={() => setNewGraph(null)}
          onDone={() => setEdited(({ graph: _graph, ...rest }) => rest)}
        />
      )}
      {isDeleting && (
        <DeleteWorkflowDialog workflow={before} onClose={() => setDeleting(false)} onDeleted={leaving.letGo} />
      )}
      {leaving.dialog}
    </>
  );
}
