import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { sentence } from "@/api/problem";
import { Button, ErrorCard, Field, TextField } from "@/kit";
import { setup as texts } from "@/texts/setup";
import { createFleet, type Stage } from "./create";
import styles from "./step.module.css";

interface FleetStepProps {
  stage: Stage;
  /** Slug of the fleet that already exists. */
  existing: string | undefined;
  onDone: () => void;
}

const SLUG = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/;

export function FleetStep({ stage, existing, onDone }: FleetStepProps) {
  const client = useQueryClient();
  const [slug, setSlug] = useState(existing ?? "home");
  const create = useMutation({
    mutationFn: () => createFleet(slug, stage),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ["setup", "fleets"] });
      onDone();
    },
  });
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (existing === slug) onDone();
    else if (SLUG.test(slug)) create.mutate();
  };
  return (
    <form className={styles.form} onSubmit={send}>
      <p>{texts.fleet.about}</p>
      {create.error && <ErrorCard title={sentence(create.error)} />}
      <Field
        name={texts.fleet.name}
        hint={texts.fleet.nameHint}
        problem={SLUG.test(slug) ? null : texts.fleet.wrongName}
      >
        <TextField value={slug} autoFocus spellCheck={false} onChange={(event) => setSlug(event.target.value)} />
      </Field>
      <p className={styles.hint}>{texts.fleet.begins}</p>
      <div className={styles.actions}>
        <Button look="primary" type="submit" isBusy={create.isPending}>
          {existing === slug ? texts.next : texts.fleet.action}
        </Button>
      </div>
    </form>
  );
}
