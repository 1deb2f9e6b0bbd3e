import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useId, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, Dialog, ErrorCard, Field, Select, TextField, toast } from "@/kit";
import { common } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { fleets as words } from "@/texts/console-fleets";
import type { Stage } from "../queries/fleets";
import { consoleKeys } from "../shared/live";
import styles from "./fleets.module.css";
import { MappingField, MissingCard } from "./Mapping";

const texts = words.new;
const SLUG = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/;

export function NewFleet({ isOpen, onClose }: { isOpen: boolean; onClose: () => void }) {
  return isOpen ? <Form onClose={onClose} /> : null;
}

function Form({ onClose }: { onClose: () => void }) {
  const id = useId();
  const client = useQueryClient();
  const navigate = useNavigate();
  const [slug, setSlug] = useState("");
  const [name, setName] = useState("");
  const [stage, setStage] = useState<Stage>("production");
  const [workflows, setWorkflows] = useState<readonly string[]>([]);
  const make = useMutation({
    mutationFn: (force: boolean) =>
      post("/api/admin/fleets", {
        body: { slug, stage, workflow_slugs: [...workflows], force, ...(name.trim() && { name: name.trim() }) },
      }),
    onSuccess: async ({ data }) => {
      await client.invalidateQueries({ queryKey: consoleKeys.fleets });
      toast({ text: texts.made(data.name || data.slug), tone: "good" });
      void navigate({ to: "/console/fleets/$stage/$slug", params: { stage: data.stage, slug: data.slug } });
    },
  });
  const missing = make.error instanceof Problem ? make.error.missing : [];
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (SLUG.test(slug)) make.mutate(false);
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.title}
      about={texts.about}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" type="submit" form={id} isBusy={make.isPending} disabled={!SLUG.test(slug)}>
            {texts.action}
          </Button>
        </>
      }
    >
      <form id={id} className={styles.form} onSubmit={send}>
        {make.error &&
          (missing.length ? (
            <MissingCard missing={missing} onForce={() => make.mutate(true)} />
          ) : (
            <ErrorCard title={sentence(make.error)} />
          ))}
        <Field name={texts.slug} hint={texts.slugHint} problem={!slug || SLUG.test(slug) ? null : texts.wrongSlug}>
          <TextField value={slug} spellCheck={false} onChange={(event) => setSlug(event.target.value)} />
        </Field>
        <Field name={texts.shown} hint={texts.shownHint}>
          <TextField value={name} maxLength={200} onChange={(event) => setName(event.target.value)} />
        </Field>
        <Field name={texts.stage}>
          <Select
            value={stage}
            choices={Object.entries(shared.stages).map(([value, shown]) => ({ value, name: shown }))}
            onChange={(value) => setStage(value as Stage)}
          />
        </Field>
        <MappingField name={texts.workflows} chosen={workflows} onChange={setWorkflows} />
      </form>
    </Dialog>
  );
}
