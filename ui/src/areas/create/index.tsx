import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { FilePlus2, SearchX, Sparkles } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { effects, workflows } from "@/api/queries";
import { Button, Chip, EmptyState } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { useCommands } from "@/lib/commands";
import { useKeys } from "@/lib/keyboard";
import { readLocal, writeLocal } from "@/lib/local-storage";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import { desk as deskTexts } from "@/texts/desk";
import styles from "./create.module.css";
import { EditorMenu } from "./EditorMenu";
import { choicesOf } from "./inputs";
import { LAST_WORKFLOW } from "./last-workflow";
import { RemovedWorkflow } from "./RemovedWorkflow";
import { useFileDrop } from "./use-file-drop";
import { type ReportedProblems, WorkflowEditor } from "./WorkflowEditor";
import { WorkflowPicker } from "./WorkflowPicker";

const { guest } = deskTexts;

export default function Create() {
  const search = useSearch({ from: "/create" });
  const navigate = useNavigate({ from: "/create" });
  const { me, desk, isGuest, hasOwnWorkflows } = useSession();
  const { data: own } = useQuery(workflows);
  const { data: shared } = useQuery(effects);
  const filter = search.q ?? "";
  const setFilter = (q: string) => void navigate({ search: (before) => ({ ...before, q }), replace: true });
  const chooser = useRef<HTMLInputElement>(null);
  const script = desk?.script_workflow ?? null;
  const choices = useMemo(() => (own && shared ? choicesOf(shared, own, script) : undefined), [own, shared, script]);
  const wanted = search.workflow ?? readLocal(LAST_WORKFLOW);
  const named = choices?.find((each) => each.slug === wanted) ?? null;
  // a slug in the URL is shown, or reported as missing
  const chosen = named ?? (search.workflow ? null : (choices?.find((each) => !each.waiting) ?? null));
  const shown = filter
    ? choices?.filter((each) => each.name.toLowerCase().includes(filter.trim().toLowerCase()))
    : choices;
  const choose = (slug: string) => {
    writeLocal(LAST_WORKFLOW, slug);
    void navigate({ search: ({ q }) => ({ workflow: slug, ...(q && { q }) }) });
  };
  useEffect(() => {
    if (chosen) writeLocal(LAST_WORKFLOW, chosen.slug);
  }, [chosen]);
  const [reported, setReported] = useState<ReportedProblems | null>(null);
  const { take, dialog } = useFileDrop({
    choices: choices ?? [],
    chosen,
    isDesk: desk !== null,
    isGuest,
    hasOwnWorkflows,
    choose,
    onProblems: (slug, problems) => setReported({ slug, problems }),
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
    ...(isGuest || !hasOwnWorkflows
      ? []
      : [
          {
            id: "create.add-workflow",
            name: texts.addWorkflow,
            group: common.palette.page,
            icon: FilePlus2,
            run: () => chooser.current?.click(),
          },
        ]),
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
              <Chip>{isGuest || !hasOwnWorkflows ? texts.dropHintGuest : texts.dropHint}</Chip>
            </span>
            {me.has_editor && <EditorMenu onChoose={(file) => take([file])} />}
            {hasOwnWorkflows && (
              <Button
                icon={FilePlus2}
                onClick={() => chooser.current?.click()}
                title={isGuest ? guest.noWorkflow : texts.addWorkflowHint}
                disabled={isGuest}
              >
                <span className={styles.wideOnly}>{texts.addWorkflow}</span>
              </Button>
            )}
          </>
        }
      />
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={texts.addWorkflow}
        accept=".json,.txt,image/*,video/*,audio/*"
        onChange={(event) => {
          take([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      <div className={styles.page}>
        <WorkflowPicker choices={shown} chosen={chosen} isFiltered={filter !== ""} />
        {chosen ? (
          <WorkflowEditor key={chosen.slug} choice={chosen} all={choices ?? []} reported={reported} />
        ) : choices?.length === 0 ? (
          <EmptyState
            icon={Sparkles}
            title={hasOwnWorkflows ? texts.empty : texts.noEffects}
            text={isGuest ? guest.noWorkflow : hasOwnWorkflows ? texts.emptyAdvice : texts.noEffectsAdvice}
          >
            {!isGuest && hasOwnWorkflows && (
              <Button look="primary" icon={FilePlus2} onClick={() => chooser.current?.click()}>
                {texts.addWorkflow}
              </Button>
            )}
          </EmptyState>
        ) : choices && search.workflow && search.from && hasOwnWorkflows && !isGuest ? (
          <RemovedWorkflow jobId={search.from} />
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
