import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Plus, Sparkles } from "lucide-react";
import { type FormEvent, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, buttonClass, Dialog, EmptyState, ErrorCard, Field, FilterChip, NumberField, TextField } from "@/kit";
import { Combobox } from "@/kit/Combobox";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { newEffect, effects as texts } from "@/texts/console-effects";
import { shared } from "@/texts/console-shared";
import { EffectCard } from "../catalogue/EffectCard";
import { type Effect, effects, keys, workflows } from "../catalogue/queries";
import { isSlug, slugOf } from "../catalogue/slugs";
import { QueryResult, Sheet, sheet } from "../shared/sheet";
import styles from "./effects.module.css";

export default function EffectsPage() {
  const { q = "", status = "", open = "", workflow = "" } = useSearch({ from: "/console/effects" });
  const navigate = useNavigate({ from: "/console/effects" });
  const found = useQuery(effects);
  const set = (part: Record<string, string | undefined>) =>
    void navigate({ search: (before) => ({ ...before, ...part }), replace: true });
  const wanted = q.toLowerCase();
  const fits = (each: Effect) =>
    (!status || each.is_active === (status === "published")) &&
    `${each.name} ${each.slug} ${each.workflow_slug}`.toLowerCase().includes(wanted);
  const counted = (isPublished: boolean) => found.data?.filter((each) => each.is_active === isPublished).length;
  return (
    <>
      <Header
        title={console_.pages.effects}
        search={<SearchField value={q} placeholder={texts.find} onChange={(next) => set({ q: next })} />}
        actions={
          <Button look="primary" icon={Plus} onClick={() => set({ open: "new" })}>
            {texts.add}
          </Button>
        }
      >
        <FilterChip isOn={!status} count={found.data?.length} onClick={() => set({ status: undefined })}>
          {texts.filters.all}
        </FilterChip>
        <FilterChip
          isOn={status === "published"}
          count={counted(true)}
          onClick={() => set({ status: status === "published" ? undefined : "published" })}
        >
          {texts.filters.published}
        </FilterChip>
        <FilterChip
          isOn={status === "drafts"}
          count={counted(false)}
          onClick={() => set({ status: status === "drafts" ? undefined : "drafts" })}
        >
          {texts.filters.drafts}
        </FilterChip>
      </Header>
      <Sheet>
        <QueryResult query={found}>
          {(all) => {
            const shown = all.filter(fits);
            if (!all.length) {
              return (
                <EmptyState icon={Sparkles} title={texts.emptyTitle} text={texts.empty}>
                  <Button look="primary" icon={Plus} onClick={() => set({ open: "new" })}>
                    {texts.add}
                  </Button>
                </EmptyState>
              );
            }
            if (!shown.length) return <EmptyState icon={Sparkles} title={common.nothingFound} />;
            return (
              <ul className={styles.grid}>
                {shown.map((each) => (
                  <li key={each.id}>
                    <Link to="/console/effects/$slug" params={{ slug: each.slug }} className={styles.card}>
                      <EffectCard
                        name={each.name}
                        tokens={each.credits_cost}
                        isFrom={each.price_formula != null}
                        about={each.workflow_slug}
                        picture={each.preview_url ?? null}
                        isPublished={each.is_active}
                      />
                    </Link>
                  </li>
                ))}
              </ul>
            );
          }}
        </QueryResult>
      </Sheet>
      {open === "new" && (
        <NewEffect workflow={workflow} onClose={() => set({ open: undefined, workflow: undefined })} />
      )}
    </>
  );
}

function NewEffect({ workflow, onClose }: { workflow: string; onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const { data: all } = useQuery(workflows);
  const [chosen, setChosen] = useState(workflow);
  const named = all?.find((each) => each.slug === chosen)?.name ?? "";
  const [typedName, setName] = useState<string | null>(null);
  const [typedSlug, setSlug] = useState<string | null>(null);
  const [price, setPrice] = useState<number | null>(5);
  const name = typedName ?? named;
  const slug = typedSlug ?? (name ? slugOf(name) : "");
  const make = useMutation({
    mutationFn: async () =>
      (
        await call<Effect>("POST", "/api/admin/effects", {
          slug,
          name: name.trim(),
          workflow_slug: chosen,
          credits_cost: price ?? 0,
          is_active: false,
        })
      ).data,
    onSuccess: async (data) => {
      await client.invalidateQueries({ queryKey: keys.effects });
      await navigate({ to: "/console/effects/$slug", params: { slug: data.slug } });
    },
  });
  const errors = make.error instanceof Problem ? make.error.errors : {};
  const canMake = Boolean(chosen && name.trim() && isSlug(slug));
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (canMake) make.mutate();
  };
  const hasNone = all?.length === 0;
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={newEffect.title}
      about={hasNone ? texts.noWorkflow : newEffect.about}
      actions={
        hasNone ? (
          <Link to="/console/workflows" className={buttonClass({ look: "primary" })}>
            {texts.toWorkflows}
          </Link>
        ) : (
          <>
            <Button onClick={onClose}>{common.cancel}</Button>
            <Button look="primary" type="submit" form="new-effect" disabled={!canMake} isBusy={make.isPending}>
              {newEffect.action}
            </Button>
          </>
        )
      }
    >
      {!hasNone && (
        <form id="new-effect" className={sheet.form} onSubmit={send}>
          {make.error && <ErrorCard title={sentence(make.error)} />}
          <Field name={newEffect.workflow} problem={errors.workflow_slug}>
            <Combobox
              value={chosen || null}
              choices={(all ?? []).map((each) => ({ value: each.slug, name: each.name }))}
              onChange={setChosen}
            />
          </Field>
          <Field name={newEffect.name} problem={errors.name}>
            <TextField maxLength={200} value={name} onChange={(event) => setName(event.target.value)} />
          </Field>
          <Field
            name={newEffect.slug}
            hint={newEffect.slugHint}
            problem={errors.slug ?? (slug && !isSlug(slug) ? shared.wrongSlug : null)}
          >
            <TextField value={slug} spellCheck={false} onChange={(event) => setSlug(event.target.value)} />
          </Field>
          <Field name={newEffect.price} problem={errors.credits_cost}>
            <NumberField
              isWhole
              minimum={0}
              value={price}
              onChange={(next) => setPrice(next === null ? null : Number(next))}
            />
          </Field>
        </form>
      )}
    </Dialog>
  );
}
