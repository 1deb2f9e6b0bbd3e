import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Download, Ellipsis, Sparkles, Trash2, Upload } from "lucide-react";
import { useMemo, useRef, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { FormView } from "@/areas/create/FormView";
import { useForm } from "@/areas/create/form";
import { Button, Dialog, ErrorCard, IconButton, Menu, toast } from "@/kit";
import { Header } from "@/kit/Header";
import { Tabs } from "@/kit/Tabs";
import { useDroppedFiles } from "@/lib/file-drop";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { shared } from "@/texts/console-shared";
import { workflows as adding, workflow as texts } from "@/texts/console-workflows";
import { isSame, previewOf, problemsWith } from "../catalogue/builder";
import { workflow as fetched, keys, type Workflow } from "../catalogue/data";
import { acceptedFiles, graphsIn, MissingList } from "../catalogue/taking";
import { useLeaving } from "../Leaving";
import { BackTo, Fetched, Section, Sheet, State, sheet } from "../sheet";
import { Builder } from "./Builder";
import { download } from "./download";
import { Settings } from "./Settings";
import { TestRun } from "./TestRun";
import { Versions } from "./Versions";
import { Workers } from "./Workers";
import styles from "./workflow.module.css";

const CHANGEABLE = [
  ...(["name", "graph", "properties", "output_node_id", "output_extension", "output_mime_type"] as const),
  ...(["provider", "self_hosted_micros_per_second", "cloud_micros_per_second", "burst_micros_per_hour"] as const),
  "is_active" as const,
];

/** What was changed of it, and nothing else. */
export const changesOf = (before: Workflow, edited: Partial<Workflow>): Partial<Workflow> =>
  Object.fromEntries(
    CHANGEABLE.filter((each) => each in edited && !isSame(edited[each] ?? null, before[each] ?? null)).map((each) => [
      each,
      edited[each] ?? null,
    ]),
  );

export default function WorkflowPage() {
  const { slug } = useParams({ from: "/console/workflows/$slug" });
  const found = useQuery(fetched(slug));
  if (found.data) return <Editor key={slug} before={found.data} />;
  return (
    <>
      <Header title={console_.pages.workflow}>
        <BackTo to="/console/workflows" name={console_.pages.workflows} />
      </Header>
      <Sheet>
        <Fetched of={found}>{() => null}</Fetched>
      </Sheet>
    </>
  );
}

function Editor({ before }: { before: Workflow }) {
  const { slug } = before;
  const client = useQueryClient();
  const navigate = useNavigate();
  const { tab = "form" } = useSearch({ from: "/console/workflows/$slug" });
  const [edited, setEdited] = useState<Partial<Workflow>>({});
  const [isDeleting, setDeleting] = useState(false);
  const [brought, setBrought] = useState<{ name: string; graph: unknown } | null>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const now: Workflow = { ...before, ...edited };
  const changes = changesOf(before, edited);
  const isDirty = Object.keys(changes).length > 0;
  const leaving = useLeaving({ isDirty });
  const wrong = now.properties.filter((each) => Object.keys(problemsWith(each)).length > 0).length;
  const change = (part: Partial<Workflow>) => setEdited((was) => ({ ...was, ...part }));

  const save = useMutation({
    mutationFn: async () =>
      (await call<Workflow>("PATCH", `/api/admin/workflows/${encodeURIComponent(slug)}`, changes)).data,
    onSuccess: (data) => {
      client.setQueryData(keys.workflow(slug), data);
      setEdited({});
      // its versions, too
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
    const { graphs, refused } = await graphsIn([file]);
    for (const { name, problem } of refused) toast({ text: `${name}: ${problem}`, tone: "bad" });
    if (graphs[0]) setBrought(graphs[0]);
  };
  useDroppedFiles((files) => void take(files[0]?.file));

  const preview = useMemo(
    () => previewOf({ slug, name: now.name, mime: now.output_mime_type, tokens: 0 }, now.properties),
    [slug, now.name, now.output_mime_type, now.properties],
  );
  const form = useForm(preview);

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
                    problems={byProperty(now, errors)}
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
                    toast({ text: texts.versions.broughtBack });
                  }}
                />
              ),
            },
          ]}
        />
      </Sheet>
      {brought && (
        <Replacing
          slug={slug}
          brought={brought}
          onClose={() => setBrought(null)}
          onDone={() => setEdited(({ graph: _graph, ...rest }) => rest)}
        />
      )}
      {isDeleting && <Deleting workflow={before} onClose={() => setDeleting(false)} onDeleted={leaving.letGo} />}
      {leaving.dialog}
    </>
  );
}

/** `properties.3.maximum` is about the fourth one, `properties.steps` about the one of that key. */
function byProperty(workflow: Workflow, errors: Readonly<Record<string, string>>): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [name, why] of Object.entries(errors)) {
    const [, place = ""] = name.split(".");
    if (!name.startsWith("properties.")) continue;
    const property = /^\d+$/.test(place)
      ? workflow.properties[Number(place)]
      : workflow.properties.find((each) => each.key === place);
    if (property) found[property.key] = why;
  }
  return found;
}

interface ReplacingProps {
  slug: string;
  brought: { name: string; graph: unknown };
  onClose: () => void;
  onDone: () => void;
}

/** Another graph for the same workflow; what is dropped by mistake is not taken. */
function Replacing({ slug, brought, onClose, onDone }: ReplacingProps) {
  const client = useQueryClient();
  const replace = useMutation({
    mutationFn: async () =>
      (await call<Workflow>("PATCH", `/api/admin/workflows/${encodeURIComponent(slug)}`, { graph: brought.graph }))
        .data,
    onSuccess: (data) => {
      client.setQueryData(keys.workflow(slug), data);
      void client.invalidateQueries({ queryKey: keys.workflow(slug) });
      void client.invalidateQueries({ queryKey: keys.fitting(slug) });
      onDone();
      onClose();
      toast({ text: texts.replaced, tone: "good" });
    },
  });
  const missing = replace.error instanceof Problem ? replace.error.missing : [];
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.replaceTitle(brought.name)}
      about={texts.replaceAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" isBusy={replace.isPending} onClick={() => replace.mutate()}>
            {texts.replaceAction}
          </Button>
        </>
      }
    >
      {replace.error && <ErrorCard title={sentence(replace.error)} />}
      {missing.length > 0 && <MissingList missing={missing} advice={adding.missing} />}
    </Dialog>
  );
}

interface DeletingProps {
  workflow: Workflow;
  onClose: () => void;
  onDeleted: () => void;
}

function Deleting({ workflow, onClose, onDeleted }: DeletingProps) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = useMutation({
    mutationFn: () => call("DELETE", `/api/admin/workflows/${encodeURIComponent(workflow.slug)}`),
    onSuccess: async () => {
      onDeleted();
      toast({ text: shared.deleted(workflow.name), tone: "good" });
      await navigate({ to: "/console/workflows" });
      client.removeQueries({ queryKey: keys.workflow(workflow.slug) });
      await client.invalidateQueries({ queryKey: keys.workflows });
    },
  });
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.deleteTitle(workflow.name)}
      about={texts.deleteAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="danger" isBusy={remove.isPending} onClick={() => remove.mutate()}>
            {shared.delete}
          </Button>
        </>
      }
    >
      {remove.error && <ErrorCard title={sentence(remove.error)} />}
    </Dialog>
  );
}
