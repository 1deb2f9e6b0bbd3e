import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { sentence } from "@/api/problem";
import { Button, ErrorCard, Field, NumberField, TextField } from "@/kit";
import { setup as texts } from "@/texts/setup";
import { createEffect } from "./create";
import styles from "./step.module.css";

interface EffectStepProps {
  tenantId: string;
  /** Name of the effect that already exists. */
  existing: string | undefined;
  onDone: () => void;
}

export function EffectStep({ tenantId, existing, onDone }: EffectStepProps) {
  const client = useQueryClient();
  const [name, setName] = useState(existing ?? texts.effect.named);
  const [price, setPrice] = useState<number>(5);
  const create = useMutation({
    mutationFn: () => createEffect(name.trim(), price, tenantId),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ["setup", "effects"] });
      onDone();
    },
  });
  return (
    <form
      className={styles.form}
      onSubmit={(event) => {
        event.preventDefault();
        if (existing) onDone();
        else create.mutate();
      }}
    >
      <p>{texts.effect.about}</p>
      {create.error && <ErrorCard title={sentence(create.error)} />}
      <Field name={texts.effect.name}>
        <TextField required maxLength={200} value={name} onChange={(event) => setName(event.target.value)} />
      </Field>
      <Field name={texts.effect.price} hint={texts.effect.priceHint}>
        <NumberField isWhole minimum={0} value={price} onChange={(value) => setPrice(Number(value ?? 0))} />
      </Field>
      <div className={styles.actions}>
        <Button look="primary" type="submit" isBusy={create.isPending} disabled={!name.trim()}>
          {existing ? texts.next : texts.effect.action}
        </Button>
      </div>
    </form>
  );
}
