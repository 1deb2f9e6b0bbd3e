import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { Ellipsis, FilePlus2, Pencil, SearchX, Sparkles, Trash2 } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { get, patch, remove } from "@/api/client";
import { sentence } from "@/api/problem";
import { effects, keys, workflows } from "@/api/queries";
import { useCommands } from "@/app/commands";
import { Header, SearchField } from "@/app/Header";
import { useKeys } from "@/app/keyboard";
import { useSession } from "@/app/session";
import { store, stored } from "@/app/stored";
import { Button, Chip, Dialog, EmptyState, Field, IconButton, Menu, TextField, toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import { useAdding } from "./adding";
import { aboutJob, presets } from "./asked";
import { useCommand } from "./command";
import styles from "./create.module.css";
import { draftOf, EMPTY, type Given, givenOf, newKeyOfFile, replaceDraft, workingOn } from "./drafts";
import { FormView } from "./FormView";
import { useForm } from "./form";
import { Picker } from "./Picker";
import { Plan, useEstimate } from "./Plan";
import { applyPreset } from "./Presets";
import { type Choice, choicesOf, primaryOf } from "./rules";
import { useTaking } from "./taking";

const LAST = "create.last";

export default function Create() {
  const search = useSearch({ from: "/create" });
  const navigate = useNavigate({ from: "/create" });
  const { desk } = useSession();
  const { data: own } = useQuery(workflows);
  const { data: shared } = useQuery(effects);
  const filter = search.q ?? "";
  const setFilter = (q: string) => void navigate({ search: (before) => ({ ...before, q }), replace: true });
  const chooser = useRef<HTMLInputElement>(null);
  const script = desk?.script_workflow ?? null;
  const choices = useMemo(() => (own && shared ? choicesOf(shared, own, script) : undefined), [own, shared, script]);
  const wanted = search.workflow ?? stored(LAST);
  const named = choices?.find((each) => each.slug === wanted) ?? null;
  // an address that names one shows that one, or says that it is not there
  const chosen = named ?? (search.workflow ? null : (choices?.find((each) => !each.waiting) ?? null));
  const shown = filter
    ? choices?.filter((each) => each.name.toLowerCase().includes(filter.trim().toLowerCase()))
    : choices;
  const choose = (slug: string) => {
    store(LAST, slug);
    void navigate({ search: ({ q }) => ({ workflow: slug, ...(q && { q }) }) });
  };
  useEffect(() => {
    if (chosen) store(LAST, chosen.slug);
  }, [chosen]);
  const [reported, setReported] = useState<{ slug: string; problems: Record<string, string> } | null>(null);
  const { take, dialog } = useTaking({
    choices: choices ?? [],
    chosen,
    isDesk: desk !== null,
    choose,
    complain: (slug, problems) => setReported({ slug, problems }),
  });
  const by = (step: number) => {
    const list = shown ?? [];
    const next = list[(chosen ? list.indexOf(chosen) : -1) + step];
    if (next) choose(next.slug);
  };
  useKeys([
    { keys: "j", name: texts.keys.next, group: texts.title, run: () => by(1) },
    { keys: "k", name: texts.keys.previous, group: texts.title, run: () => by(-1) },
    {
      keys: "mod+Enter",
      name: texts.keys.add,
      group: texts.title,
      whileTyping: true,
      isFirst: true,
      run: () => document.querySelector<HTMLButtonElement>("[data-add]")?.click(),
    },
  ]);
  useCommands([
    {
      id: "create.add-workflow",
      name: texts.addWorkflow,
      group: common.palette.page,
      icon: FilePlus2,
      run: () => chooser.current?.click(),
    },
    ...(choices ?? []).map((each) => ({
      id: `create.${each.slug}`,
      name: each.name,
      group: texts.workflows,
      icon: Sparkles,
      run: () => choose(each.slug),
    })),
  ]);
  return (
    <>
      <Header
        title={texts.title}
        search={<SearchField value={filter} onChange={setFilter} placeholder={texts.find} />}
        actions={
          <>
            <span className={styles.dropHint}>
              <Chip>{texts.dropHint}</Chip>
            </span>
            <Button icon={FilePlus2} onClick={() => chooser.current?.click()} title={texts.addWorkflowHint}>
              <span className={styles.wideOnly}>{texts.addWorkflow}</span>
            </Button>
          </>
        }
      />
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={texts.addWorkflow}
        accept=".json,image/*,video/*,audio/*"
        onChange={(event) => {
          take([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      <div className={styles.page}>
        <Picker choices={shown} chosen={chosen} isFiltered={filter !== ""} />
        {chosen ? (
          <Workbench key={chosen.slug} choice={chosen} all={choices ?? []} reported={reported} />
        ) : choices?.length === 0 ? (
          <EmptyState icon={Sparkles} title={texts.empty} text={texts.emptyAdvice}>
            <Button look="primary" icon={FilePlus2} onClick={() => chooser.current?.click()}>
              {texts.addWorkflow}
            </Button>
          </EmptyState>
        ) : choices && search.workflow ? (
          <EmptyState icon={SearchX} title={texts.notThere} text={texts.notThereAdvice} />
        ) : (
          <div />
        )}
      </div>
      {dialog}
    </>
  );
}

interface WorkbenchProps {
  choice: Choice;
  all: readonly Choice[];
  reported: { slug: string; problems: Record<string, string> } | null;
}

function Workbench({ choice, all, reported }: WorkbenchProps) {
  const { desk } = useSession();
  const form = useForm(choice);
  const command = useCommand(form);
  const adding = useAdding(form, { isDesk: desk !== null });
  const { found, folderProblem } = useEstimate(form, desk !== null);
  useBeginnings(choice, all, form);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once for each thing reported
  useEffect(() => {
    if (reported?.slug === choice.slug) form.setProblems(reported.problems);
  }, [reported]);
  return (
    <>
      <div className={styles.middle}>
        <FormView form={form} found={found} folderProblem={folderProblem}>
          {choice.kind === "workflow" && !choice.isScript && <OwnMenu choice={choice} />}
        </FormView>
      </div>
      <Plan form={form} adding={adding} command={command} found={found} folderProblem={folderProblem} />
    </>
  );
}

/** What the address says to begin with: an earlier job, a preset, a file. */
function useBeginnings(choice: Choice, all: readonly Choice[], form: ReturnType<typeof useForm>) {
  const { from, preset, input } = useSearch({ from: "/create" });
  const navigate = useNavigate({ from: "/create" });
  const { data: known } = useQuery(presets);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once for each job
  useEffect(() => {
    if (!from) return;
    // what was changed since then is kept over a reload
    if (draftOf(choice.slug).from?.id === from) return;
    let isOver = false;
    void (async () => {
      try {
        const [job, about] = await Promise.all([
          get("/api/ai-jobs/{job_id}", { path: { job_id: from } }),
          aboutJob(from),
        ]);
        if (isOver) return;
        const target =
          job.effect_id === null || job.effect_id === undefined
            ? all.find((each) => each.kind === "workflow" && each.slug === about.workflow_slug)
            : all.find((each) => each.effectId === job.effect_id);
        if (!target) return toast({ text: texts.notThereAdvice, tone: "bad" });
        const undo = fill(target, from, job.label ?? from, about.inputs);
        void navigate({ search: { workflow: target.slug, from }, replace: true });
        if (!undo) return;
        const run = () => {
          undo();
          // else a reload would put them in again
          void navigate({ search: { workflow: target.slug }, replace: true });
        };
        toast({ text: texts.from.putIn(target.name), action: { name: texts.form.undo, run } });
      } catch (thrown) {
        toast({ text: `${texts.from.failed} ${sentence(thrown)}`, tone: "bad" });
      }
    })();
    return () => {
      isOver = true;
    };
  }, [from]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once for each preset
  useEffect(() => {
    const found = preset && known?.find((each) => each.name === preset);
    if (!found) return;
    applyPreset(form, found);
    void navigate({ search: { workflow: choice.slug }, replace: true });
  }, [preset, known]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once for each file
  useEffect(() => {
    if (!input) return;
    void (async () => {
      try {
        const file = await get("/api/videos/uploads/{file_id}", { path: { file_id: input } });
        const fits = (each: Choice) => file.mime_type.startsWith(`${primaryOf(each)?.type ?? "-"}/`);
        const target = fits(choice) ? choice : all.find((each) => !each.waiting && fits(each));
        const key = target && primaryOf(target)?.key;
        if (!target || !key) return toast({ text: texts.taking.noInput, tone: "bad" });
        const given = givenOf(file);
        const undo = replaceDraft(target.slug, workingOn(draftOf(target.slug), key, given));
        toast({
          text: texts.taking.isInput(given.name),
          tone: "good",
          ...(undo && { action: { name: texts.form.undo, run: undo } }),
        });
        // who goes back does not add it again
        void navigate({ search: { workflow: target.slug }, replace: true });
      } catch (thrown) {
        toastProblem(thrown);
      }
    })();
  }, [input]);
}

type Inputs = Awaited<ReturnType<typeof aboutJob>>["inputs"];

/** Everything as an earlier job had it; returns the way back to what was in the form. */
function fill(choice: Choice, id: string, label: string, inputs: Inputs): (() => void) | null {
  const files: Record<string, Given[]> = {};
  const before: Record<string, string> = {};
  const lost: string[] = [];
  for (const input of choice.properties) {
    const found = inputs.find((each) => each.key === input.key);
    if (!found) continue;
    if (!["image", "video", "audio"].includes(input.type)) {
      before[input.key] = found.value === null || found.value === undefined ? "" : String(found.value);
    } else if (found.file_id) {
      const name = String(found.value ?? "");
      const given = { key: newKeyOfFile(), id: found.file_id, name, mime: `${input.type}/*`, url: found.url ?? null };
      files[input.key] = [{ ...given, part: 1, problem: null }];
    } else lost.push(String(found.value ?? input.label));
  }
  // its prompt was one, whatever lines it has
  const next = { ...EMPTY, texts: before, files, byLine: false, from: { id, texts: before, label } };
  if (lost.length) toast({ text: texts.from.lost(lost.join(", ")), tone: "bad" });
  return replaceDraft(choice.slug, next);
}

function OwnMenu({ choice }: { choice: Choice }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/create" });
  const [asks, setAsks] = useState<"delete" | "rename" | null>(null);
  const [name, setName] = useState(choice.name);
  const close = () => setAsks(null);
  const act = async (work: () => Promise<unknown>, message: string) => {
    try {
      await work();
      close();
      toast({ text: message, tone: "good" });
      await client.invalidateQueries({ queryKey: keys.workflows });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const path = { slug: choice.slug };
  const rename = () =>
    name.trim() &&
    act(() => patch("/api/workflows/{slug}", { path, body: { name: name.trim() } }), texts.delete.renamed);
  const forget = () =>
    act(async () => {
      await remove("/api/workflows/{slug}", { path });
      store(LAST, null);
      await navigate({ search: {} });
    }, texts.delete.deleted(choice.name));
  return (
    <div>
      <Menu
        items={[
          [{ name: texts.delete.rename, icon: Pencil, run: () => setAsks("rename") }],
          [{ name: texts.delete.name, icon: Trash2, isDanger: true, run: () => setAsks("delete") }],
        ]}
      >
        <IconButton icon={Ellipsis} name={texts.delete.menu} size="small" />
      </Menu>
      <Dialog
        isOpen={asks === "delete"}
        onClose={close}
        title={texts.delete.ask(choice.name)}
        about={texts.delete.about}
        actions={
          <>
            <Button onClick={close}>{common.cancel}</Button>
            <Button look="danger" onClick={forget}>
              {texts.presets.deleteIt}
            </Button>
          </>
        }
      />
      <Dialog
        isOpen={asks === "rename"}
        onClose={close}
        title={texts.delete.renameTitle}
        actions={
          <>
            <Button onClick={close}>{common.cancel}</Button>
            <Button look="primary" onClick={rename}>
              {texts.delete.save}
            </Button>
          </>
        }
      >
        <Field name={texts.plan.name}>
          <TextField value={name} maxLength={200} onChange={(event) => setName(event.target.value)} />
        </Field>
      </Dialog>
    </div>
  );
}
