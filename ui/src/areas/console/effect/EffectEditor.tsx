import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Ellipsis, Trash2, Workflow as WorkflowIcon } from "lucide-react";
import { useMemo, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { EffectPreview } from "@/areas/studio/EffectPreview";
import { Button, ErrorCard, Field, IconButton, Menu, NumberField, TextArea, TextField, toast } from "@/kit";
import { Combobox } from "@/kit/Combobox";
import { Header } from "@/kit/Header";
import { common, duration } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { effects as list, effect as texts } from "@/texts/console-effects";
import { shared } from "@/texts/console-shared";
import type { Property } from "../catalogue/builder";
import { EffectCard, mimeOf } from "../catalogue/EffectCard";
import { previewOf } from "../catalogue/form-preview";
import { type Effect, keys, workflows } from "../catalogue/queries";
import { BackTo, Facts, RelativeTime, Section, Sheet, State, sheet } from "../shared/sheet";
import { useUnsavedChanges } from "../shared/use-unsaved-changes";
import { useVersion } from "../shared/use-version";
import { changesOf } from "./changes";
import { DeleteEffectDialog } from "./DeleteEffectDialog";
import styles from "./effect.module.css";
import { Overrides } from "./Overrides";
import { type EffectPicture, PictureSection } from "./PictureSection";
import { WorkerWarning } from "./WorkerWarning";

type Example = "preview_path" | "before_path";

export function EffectEditor({ before }: { before: Effect }) {
  const { slug } = before;
  const client = useQueryClient();
  const navigate = useNavigate();
  const { data: all = [] } = useQuery(workflows);
  const [edited, setEdited] = useState<Partial<Effect>>({});
  /** Uploaded but not saved yet. */
  const [chosen, setChosen] = useState<Partial<Record<Example, EffectPicture | null>>>({});
  const [isDeleting, setDeleting] = useState(false);
  const now: Effect = { ...before, ...edited };
  const changes = changesOf(before, edited);
  const isDirty = Object.keys(changes).length > 0;
  const leaving = useUnsavedChanges({ isDirty });
  const versioned = useVersion(before, isDirty);
  const change = (part: Partial<Effect>) => setEdited((was) => ({ ...was, ...part }));
  const workflow = all.find((each) => each.slug === now.workflow_slug);
  const properties: readonly Property[] = workflow?.properties ?? [];

  const save = useMutation({
    mutationFn: async (more: Partial<Effect>) => {
      const path = `/api/admin/effects/${encodeURIComponent(slug)}`;
      const body = { ...changes, ...more };
      const refetch = () => client.refetchQueries({ queryKey: keys.effect(slug), exact: true });
      return (await versioned((version) => call<Effect>("PATCH", path, body, undefined, version), refetch)).data;
    },
    onSuccess: (data) => {
      client.setQueryData(keys.effect(slug), data);
      setEdited({});
      setChosen({});
      void client.invalidateQueries({ queryKey: keys.effects });
    },
  });
  const errors = save.error instanceof Problem ? save.error.errors : {};
  const saveNow = (more: Partial<Effect>, words: string) =>
    save.mutate(more, { onSuccess: () => toast({ text: words, tone: "good" }) });

  const shown = (path: Example, url: "preview_url" | "before_url"): EffectPicture | null => {
    const [saved, address] = [now[path], before[url]];
    return chosen[path] ?? (saved && address ? { url: address, mime: mimeOf(saved) } : null);
  };
  const seen = shown("preview_path", "preview_url");
  const choose = (path: Example) => (saved: string | null, picture: EffectPicture | null) => {
    change({ [path]: saved });
    setChosen((was) => ({ ...was, [path]: picture }));
  };
  const preview = useMemo(
    () =>
      previewOf(
        { slug: `effect:${slug}`, name: now.name, mime: workflow?.output_mime_type ?? "", tokens: now.credits_cost },
        properties,
        now.property_overrides,
      ),
    [slug, now.name, now.credits_cost, now.property_overrides, workflow?.output_mime_type, properties],
  );
  const canSave = now.name.trim() !== "";

  return (
    <>
      <Header
        title={now.name || slug}
        actions={
          <>
            {isDirty && (
              <Button
                look="quiet"
                onClick={() => {
                  setEdited({});
                  setChosen({});
                }}
              >
                {shared.discard}
              </Button>
            )}
            <Menu
              items={[
                [
                  {
                    name: texts.openWorkflow,
                    icon: WorkflowIcon,
                    run: () =>
                      void navigate({ to: "/console/workflows/$slug", params: { slug: before.workflow_slug } }),
                  },
                ],
                [{ name: shared.delete, icon: Trash2, isDanger: true, run: () => setDeleting(true) }],
              ]}
            >
              <IconButton icon={Ellipsis} name={common.more} />
            </Menu>
            <Button disabled={!isDirty || !canSave} isBusy={save.isPending} onClick={() => saveNow({}, shared.saved)}>
              {shared.save}
            </Button>
            {before.is_active ? (
              <Button
                isBusy={save.isPending}
                onClick={() => saveNow({ is_active: false }, texts.unpublishedNow(now.name))}
              >
                {texts.unpublish}
              </Button>
            ) : (
              <Button
                look="primary"
                disabled={!canSave}
                isBusy={save.isPending}
                onClick={() => saveNow({ is_active: true }, texts.publishedNow(now.name))}
              >
                {isDirty ? texts.saveAndPublish : texts.publish}
              </Button>
            )}
          </>
        }
      >
        <BackTo to="/console/effects" name={console_.pages.effects} />
        <State tone={before.is_active ? "good" : "idle"}>{before.is_active ? list.published : list.draft}</State>
        {isDirty && <State tone="warn">{shared.unsaved}</State>}
      </Header>
      <Sheet>
        {save.error && <ErrorCard title={sentence(save.error)} />}
        <WorkerWarning workflow={now.workflow_slug} />
        <div className={sheet.columns}>
          <div className={sheet.column}>
            <PictureSection
              title={texts.picture}
              about={texts.pictureAbout}
              seen={seen}
              onPath={choose("preview_path")}
            />
            <PictureSection
              title={texts.before}
              about={texts.beforeAbout}
              seen={shown("before_path", "before_url")}
              onPath={choose("before_path")}
            />
            <Section title={texts.about}>
              <div className={sheet.fields}>
                <Field name={texts.name} problem={errors.name}>
                  <TextField
                    maxLength={200}
                    value={now.name}
                    onChange={(event) => change({ name: event.target.value })}
                  />
                </Field>
                <Field name={texts.slug}>
                  <TextField value={slug} readOnly />
                </Field>
                <Field name={texts.description} hint={texts.descriptionHint} problem={errors.description}>
                  <TextArea
                    maxLength={1000}
                    value={now.description ?? ""}
                    onChange={(event) => change({ description: event.target.value || null })}
                  />
                </Field>
                <Field name={texts.category} hint={texts.categoryHint} problem={errors.category}>
                  <TextField
                    maxLength={60}
                    value={now.category ?? ""}
                    onChange={(event) => change({ category: event.target.value || null })}
                  />
                </Field>
                <Field name={texts.position} hint={texts.positionHint} problem={errors.position}>
                  <NumberField
                    isWhole
                    minimum={0}
                    value={now.position ?? 0}
                    onChange={(next) => change({ position: Number(next ?? 0) })}
                  />
                </Field>
                <Field name={texts.workflow} problem={errors.workflow_slug}>
                  <Combobox
                    value={now.workflow_slug}
                    choices={all.map((each) => ({ value: each.slug, name: each.name }))}
                    onChange={(workflow_slug) => {
                      // drop overrides that the new workflow does not have
                      const known = all.find((each) => each.slug === workflow_slug)?.properties ?? [];
                      const kept = Object.entries(now.property_overrides).filter(([key]) =>
                        known.some((each) => each.key === key),
                      );
                      change({ workflow_slug, property_overrides: Object.fromEntries(kept) });
                    }}
                  />
                </Field>
                <Field name={texts.formula} hint={texts.formulaHint} problem={errors.price_formula}>
                  <TextField
                    maxLength={200}
                    placeholder={texts.noFormula}
                    value={now.price_formula ?? ""}
                    onChange={(event) => {
                      const price_formula = event.target.value || null;
                      const maximum = now.max_credits_cost ?? 10 * Math.max(1, now.credits_cost);
                      change({ price_formula, max_credits_cost: price_formula === null ? null : maximum });
                    }}
                  />
                </Field>
                {now.price_formula != null && (
                  <Field name={texts.maximum} hint={texts.maximumHint} problem={errors.max_credits_cost}>
                    <NumberField
                      isWhole
                      minimum={0}
                      value={now.max_credits_cost ?? null}
                      onChange={(next) => change({ max_credits_cost: Number(next ?? 0) })}
                    />
                  </Field>
                )}
                <Field
                  name={now.price_formula != null ? texts.minimum : texts.price}
                  hint={texts.priceHint}
                  problem={errors.credits_cost}
                >
                  <NumberField
                    isWhole
                    minimum={0}
                    value={now.credits_cost}
                    onChange={(next) => change({ credits_cost: Number(next ?? 0) })}
                  />
                </Field>
                <Field name={texts.maxRun} hint={texts.maxRunHint} problem={errors.max_run_seconds}>
                  <NumberField
                    isWhole
                    minimum={1}
                    maximum={86_400}
                    value={now.max_run_seconds ?? null}
                    onChange={(next) => change({ max_run_seconds: Number(next ?? 0) })}
                  />
                </Field>
                <Field name={texts.maxWait} hint={texts.maxWaitHint} problem={errors.max_wait_seconds}>
                  <NumberField
                    isWhole
                    minimum={0}
                    placeholder={texts.noWait}
                    value={now.max_wait_seconds ?? null}
                    onChange={(next) => change({ max_wait_seconds: next === null ? null : Number(next) })}
                  />
                </Field>
              </div>
            </Section>
            <Overrides
              properties={properties}
              overrides={now.property_overrides}
              problems={errors}
              onChange={(property_overrides) => change({ property_overrides: { ...property_overrides } })}
            />
            <Section title={texts.facts}>
              <Facts
                facts={[
                  [
                    texts.lastRun,
                    before.last_processing_time_seconds === null
                      ? shared.never
                      : duration(before.last_processing_time_seconds),
                  ],
                  [texts.changed, <RelativeTime key="changed" at={before.updated_at} />],
                  [texts.made, <RelativeTime key="made" at={before.created_at} />],
                ]}
              />
            </Section>
          </div>
          <Section title={texts.preview} about={texts.previewAbout} className={sheet.sticky ?? ""}>
            <div className={styles.card}>
              <EffectCard
                name={now.name}
                tokens={now.credits_cost}
                isFrom={now.price_formula != null}
                about={now.description ?? ""}
                picture={seen?.url ?? null}
                mime={seen?.mime ?? null}
              />
            </div>
            <div className={styles.preview}>
              <EffectPreview choice={preview} />
            </div>
          </Section>
        </div>
      </Sheet>
      {isDeleting && (
        <DeleteEffectDialog effect={before} onClose={() => setDeleting(false)} onDeleted={leaving.letGo} />
      )}
      {leaving.dialog}
    </>
  );
}
