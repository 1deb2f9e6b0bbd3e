import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { Ellipsis, Trash2, Workflow as WorkflowIcon } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { typeOf } from "@/api/uploads";
import { FormView } from "@/areas/create/FormView";
import { useForm } from "@/areas/create/form";
import {
  Button,
  buttonClass,
  Dialog,
  ErrorCard,
  Field,
  IconButton,
  Menu,
  NumberField,
  Progress,
  TextField,
  toast,
  toastProblem,
} from "@/kit";
import { Combobox } from "@/kit/Combobox";
import { DropZone } from "@/kit/DropZone";
import { Header } from "@/kit/Header";
import { Media } from "@/kit/Media";
import { common, duration } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { effects as list, effect as texts } from "@/texts/console-effects";
import { shared } from "@/texts/console-shared";
import { isSame, type Property, previewOf } from "../catalogue/builder";
import { type Effect, effect as fetched, fleets, keys, uploadAsset, workflows } from "../catalogue/data";
import { EffectCard, mimeOf } from "../catalogue/EffectCard";
import { useLeaving } from "../Leaving";
import { BackTo, Facts, Fetched, Section, Sheet, State, sheet, When } from "../sheet";
import styles from "./effect.module.css";
import { Overrides } from "./Overrides";

const CHANGEABLE = [
  ...(["name", "workflow_slug", "property_overrides", "credits_cost", "max_wait_seconds", "preview_path"] as const),
];

/** What was changed of it, and nothing else. */
export const changesOf = (before: Effect, edited: Partial<Effect>): Partial<Effect> =>
  Object.fromEntries(
    CHANGEABLE.filter((each) => each in edited && !isSame(edited[each] ?? null, before[each] ?? null)).map((each) => [
      each,
      edited[each] ?? null,
    ]),
  );

export default function EffectPage() {
  const { slug } = useParams({ from: "/console/effects/$slug" });
  const found = useQuery(fetched(slug));
  if (found.data) return <Editor key={slug} before={found.data} />;
  return (
    <>
      <Header title={console_.pages.effect}>
        <BackTo to="/console/effects" name={console_.pages.effects} />
      </Header>
      <Sheet>
        <Fetched of={found}>{() => null}</Fetched>
      </Sheet>
    </>
  );
}

interface Picture {
  url: string;
  mime: string;
}

function Editor({ before }: { before: Effect }) {
  const { slug } = before;
  const client = useQueryClient();
  const navigate = useNavigate();
  const { data: all = [] } = useQuery(workflows);
  const { data: groups } = useQuery(fleets);
  const [edited, setEdited] = useState<Partial<Effect>>({});
  /** What was just chosen, before the server has it. */
  const [chosen, setChosen] = useState<Picture | null>(null);
  const [isDeleting, setDeleting] = useState(false);
  const now: Effect = { ...before, ...edited };
  const changes = changesOf(before, edited);
  const isDirty = Object.keys(changes).length > 0;
  const leaving = useLeaving({ isDirty });
  const change = (part: Partial<Effect>) => setEdited((was) => ({ ...was, ...part }));
  const workflow = all.find((each) => each.slug === now.workflow_slug);
  const properties: readonly Property[] = workflow?.properties ?? [];

  const save = useMutation({
    mutationFn: async (more: Partial<Effect>) =>
      (await call<Effect>("PATCH", `/api/admin/effects/${encodeURIComponent(slug)}`, { ...changes, ...more })).data,
    onSuccess: (data) => {
      client.setQueryData(keys.effect(slug), data);
      setEdited({});
      setChosen(null);
      void client.invalidateQueries({ queryKey: keys.effects });
    },
  });
  const errors = save.error instanceof Problem ? save.error.errors : {};
  const saveNow = (more: Partial<Effect>, words: string) =>
    save.mutate(more, { onSuccess: () => toast({ text: words, tone: "good" }) });

  const seen: Picture | null =
    chosen ??
    (now.preview_path && before.preview_url ? { url: before.preview_url, mime: mimeOf(now.preview_path) } : null);
  const preview = useMemo(
    () =>
      previewOf(
        { slug: `effect:${slug}`, name: now.name, mime: workflow?.output_mime_type ?? "", tokens: now.credits_cost },
        properties,
        now.property_overrides,
      ),
    [slug, now.name, now.credits_cost, now.property_overrides, workflow?.output_mime_type, properties],
  );
  const form = useForm(preview);
  const hasNoFleet = groups !== undefined && !groups.some((each) => each.workflow_slugs.includes(now.workflow_slug));
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
                  setChosen(null);
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
        {hasNoFleet && (
          <ErrorCard
            tone="warn"
            title={texts.noFleet}
            actions={
              <Link
                to="/console/workflows/$slug"
                params={{ slug: now.workflow_slug }}
                search={{ tab: "workers" }}
                className={buttonClass({ size: "small" })}
              >
                {texts.mapFleet}
              </Link>
            }
          />
        )}
        <div className={sheet.columns}>
          <div className={sheet.column}>
            <PictureSection
              seen={seen}
              onPath={(path, picture) => {
                change({ preview_path: path });
                setChosen(picture);
              }}
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
                <Field name={texts.workflow} problem={errors.workflow_slug}>
                  <Combobox
                    value={now.workflow_slug}
                    choices={all.map((each) => ({ value: each.slug, name: each.name }))}
                    onChange={(workflow_slug) => {
                      // what another workflow does not have cannot be set
                      const known = all.find((each) => each.slug === workflow_slug)?.properties ?? [];
                      const kept = Object.entries(now.property_overrides).filter(([key]) =>
                        known.some((each) => each.key === key),
                      );
                      change({ workflow_slug, property_overrides: Object.fromEntries(kept) });
                    }}
                  />
                </Field>
                <Field name={texts.price} hint={texts.priceHint} problem={errors.credits_cost}>
                  <NumberField
                    isWhole
                    minimum={0}
                    value={now.credits_cost}
                    onChange={(next) => change({ credits_cost: Number(next ?? 0) })}
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
                  [texts.changed, <When key="changed" at={before.updated_at} />],
                  [texts.made, <When key="made" at={before.created_at} />],
                ]}
              />
            </Section>
          </div>
          <Section title={texts.preview} about={texts.previewAbout} className={sheet.sticky ?? ""}>
            <div className={styles.card}>
              <EffectCard
                name={now.name}
                tokens={now.credits_cost}
                about=""
                picture={seen?.url ?? null}
                mime={seen?.mime ?? null}
              />
            </div>
            <div className={styles.preview}>
              <FormView form={form} found={null} folderProblem={null} isPlain />
            </div>
          </Section>
        </div>
      </Sheet>
      {isDeleting && <Deleting effect={before} onClose={() => setDeleting(false)} onDeleted={leaving.letGo} />}
      {leaving.dialog}
    </>
  );
}

interface PictureSectionProps {
  seen: Picture | null;
  onPath: (path: string | null, picture: Picture | null) => void;
}

function PictureSection({ seen, onPath }: PictureSectionProps) {
  const chooser = useRef<HTMLInputElement>(null);
  const [part, setPart] = useState<number | null>(null);
  const kept = useRef<string[]>([]);
  useEffect(
    () => () => {
      for (const each of kept.current) URL.revokeObjectURL(each);
    },
    [],
  );
  const take = async (file: File | undefined) => {
    if (!file) return;
    const mime = typeOf(file);
    if (!/^(image|video)\//.test(mime)) return toast({ text: texts.notMedia(file.name), tone: "bad" });
    setPart(0);
    try {
      const path = await uploadAsset(file, setPart);
      const url = URL.createObjectURL(file);
      kept.current.push(url);
      onPath(path, { url, mime });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setPart(null);
    }
  };
  return (
    <Section title={texts.picture} about={texts.pictureAbout}>
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={texts.picture}
        accept="image/*,video/*"
        onChange={(event) => {
          void take(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
      {part !== null && <Progress value={part} name={texts.uploading} />}
      {seen ? (
        <>
          <div className={styles.pictureBox}>
            <Media file={{ url: seen.url, mime_type: seen.mime }} name={texts.picture} />
          </div>
          <div className={sheet.actions}>
            <Button size="small" onClick={() => chooser.current?.click()}>
              {texts.replace}
            </Button>
            <Button size="small" look="quiet" onClick={() => onPath(null, null)}>
              {texts.remove}
            </Button>
          </div>
        </>
      ) : (
        <DropZone
          title={texts.drop}
          accept="image/*,video/*"
          isMany={false}
          isDisabled={part !== null}
          onFiles={(files) => void take(files[0]?.file)}
        />
      )}
    </Section>
  );
}

interface DeletingProps {
  effect: Effect;
  onClose: () => void;
  onDeleted: () => void;
}

function Deleting({ effect, onClose, onDeleted }: DeletingProps) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = useMutation({
    mutationFn: () => call("DELETE", `/api/admin/effects/${encodeURIComponent(effect.slug)}`),
    onSuccess: async () => {
      onDeleted();
      toast({ text: shared.deleted(effect.name), tone: "good" });
      await navigate({ to: "/console/effects" });
      client.removeQueries({ queryKey: keys.effect(effect.slug) });
      await client.invalidateQueries({ queryKey: keys.effects });
    },
  });
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.deleteTitle(effect.name)}
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
