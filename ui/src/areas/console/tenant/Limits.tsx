import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Problem, sentence } from "@/api/problem";
import { Button, ErrorCard, Field, NumberField, toast } from "@/kit";
import { shared } from "@/texts/console-shared";
import { tenant as texts } from "@/texts/console-tenants";
import { Section, sheet } from "../shared/sheet";
import { changeTenant, keys, type TenantDetails } from "../tenants/queries";

export function Limits({ tenant: data }: { tenant: TenantDetails }) {
  const client = useQueryClient();
  const [edited, setEdited] = useState<{ max_active_jobs?: number | null; max_wait_seconds?: number | null }>({});
  const { limits } = data;
  const now = { ...limits, ...edited };
  const isDirty = now.max_active_jobs !== limits.max_active_jobs || now.max_wait_seconds !== limits.max_wait_seconds;
  const save = useMutation({
    mutationFn: () => changeTenant(data.id, edited),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: keys.tenant(data.id) });
      setEdited({});
      toast({ text: shared.saved, tone: "good" });
    },
  });
  const errors = save.error instanceof Problem ? save.error.errors : {};
  const whole = (value: number | bigint | null) => (value === null ? null : Number(value));
  return (
    <Section
      title={texts.limits.title}
      about={texts.limits.about}
      aside={
        <Button disabled={!isDirty} isBusy={save.isPending} onClick={() => save.mutate()}>
          {shared.save}
        </Button>
      }
    >
      {save.error && <ErrorCard title={sentence(save.error)} />}
      <div className={sheet.fields}>
        <Field name={texts.limits.maxActive} problem={errors.max_active_jobs}>
          <NumberField
            isWhole
            minimum={0}
            placeholder={texts.limits.asServer(limits.usual_active_jobs)}
            value={now.max_active_jobs ?? null}
            onChange={(next) => setEdited((was) => ({ ...was, max_active_jobs: whole(next) }))}
          />
        </Field>
        <Field name={texts.limits.maxWait} problem={errors.max_wait_seconds}>
          <NumberField
            isWhole
            minimum={0}
            placeholder={texts.limits.forever}
            value={now.max_wait_seconds ?? null}
            onChange={(next) => setEdited((was) => ({ ...was, max_wait_seconds: whole(next) }))}
          />
        </Field>
      </div>
    </Section>
  );
}
