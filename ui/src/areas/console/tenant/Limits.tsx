import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Problem, sentence } from "@/api/problem";
import { Button, ErrorCard, Field, NumberField, Switch, toast } from "@/kit";
import { shared } from "@/texts/console-shared";
import { tenant as texts } from "@/texts/console-tenants";
import { Section, sheet } from "../shared/sheet";
import { useVersion } from "../shared/use-version";
import { changeTenant, keys, type TenantDetails } from "../tenants/queries";

const LIMITS = ["max_active_jobs", "max_wait_seconds", "max_stored_bytes", "max_stored_files"] as const;
type Limit = (typeof LIMITS)[number];

export function Limits({ tenant: data }: { tenant: TenantDetails }) {
  const client = useQueryClient();
  const [edited, setEdited] = useState<Partial<Record<Limit, number | null>> & { may_add_workflows?: boolean }>({});
  const { limits } = data;
  const now = { ...limits, ...edited };
  const isDirty =
    LIMITS.some((name) => now[name] !== limits[name]) || now.may_add_workflows !== limits.may_add_workflows;
  const versioned = useVersion(data, isDirty);
  const save = useMutation({
    mutationFn: () =>
      versioned(
        (version) => changeTenant(data.id, edited, version),
        () => client.refetchQueries({ queryKey: keys.tenant(data.id), exact: true }),
      ),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: keys.tenant(data.id) });
      setEdited({});
      toast({ text: shared.saved, tone: "good" });
    },
  });
  const errors = save.error instanceof Problem ? save.error.errors : {};
  const usual: Record<Limit, number | null> = {
    max_active_jobs: limits.usual_active_jobs,
    max_wait_seconds: null,
    max_stored_bytes: limits.usual_stored_bytes,
    max_stored_files: limits.usual_stored_files,
  };
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
      {data.stored_files !== null && data.stored_bytes !== null && (
        <p>{texts.limits.stored(data.stored_files, data.stored_bytes)}</p>
      )}
      <div className={sheet.fields}>
        {LIMITS.map((name) => (
          <Field key={name} name={texts.limits.names[name]} problem={errors[name]}>
            <NumberField
              isWhole
              minimum={0}
              placeholder={usual[name] === null ? texts.limits.forever : texts.limits.asServer(usual[name])}
              value={now[name] ?? null}
              onChange={(next) => setEdited((was) => ({ ...was, [name]: next === null ? null : Number(next) }))}
            />
          </Field>
        ))}
      </div>
      <Switch
        name={texts.limits.ownWorkflows}
        hint={limits.everyone_may_add_workflows ? texts.limits.everyone : texts.limits.ownWorkflowsAbout}
        isOn={now.may_add_workflows || limits.everyone_may_add_workflows}
        onChange={(next) => setEdited((was) => ({ ...was, may_add_workflows: next }))}
        isDisabled={limits.everyone_may_add_workflows}
      />
    </Section>
  );
}
