import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Coins } from "lucide-react";
import { type FormEvent, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { me } from "@/api/queries";
import { Button, Dialog, ErrorCard, Field, NumberField, TextField, toast } from "@/kit";
import { common } from "@/texts/common";
import { shared } from "@/texts/console-shared";
import { tenants as list, tenant as texts } from "@/texts/console-tenants";
import { Section, sheet } from "../shared/sheet";
import { keys, newReference, type TenantDetails } from "../tenants/queries";

/** Email of the first user. */
export const tenantName = (data: TenantDetails): string => data.users[0]?.email ?? data.name;

export function Credits({ tenant: data }: { tenant: TenantDetails }) {
  const { data: who } = useQuery(me);
  const [dialog, setDialog] = useState<Way | null>(null);
  // kept until the server confirms: a retry after a lost response must not credit twice
  const [reference, setReference] = useState<string | null>(null);
  const open = (way: Way) => {
    setReference((known) => known ?? newReference(who?.email ?? ""));
    setDialog(way);
  };
  return (
    <Section
      title={texts.credits.title}
      aside={
        <>
          <Button onClick={() => open("debits")} disabled={!data.balance}>
            {texts.credits.take}
          </Button>
          <Button look="primary" icon={Coins} onClick={() => open("credits")}>
            {texts.credits.give}
          </Button>
        </>
      }
    >
      <p>
        <span className={sheet.big}>{data.balance === null ? list.unreachable : shared.count(data.balance)}</span>
      </p>
      {dialog !== null && reference !== null && (
        <GrantDialog
          key={dialog}
          way={dialog}
          tenant={data}
          reference={reference}
          setReference={setReference}
          onGiven={() => setReference(null)}
          onClose={() => setDialog(null)}
        />
      )}
    </Section>
  );
}

/** Adds tokens, or takes them back. */
type Way = "credits" | "debits";

interface GrantDialogProps {
  way: Way;
  tenant: TenantDetails;
  reference: string;
  setReference: (reference: string) => void;
  onGiven: () => void;
  onClose: () => void;
}

function GrantDialog({ way, tenant: data, reference, setReference, onGiven, onClose }: GrantDialogProps) {
  const client = useQueryClient();
  const [amount, setAmount] = useState<number | null>(100);
  const [description, setDescription] = useState("");
  const give = useMutation({
    mutationFn: async () =>
      (
        await call<{ amount: number; balance: number }>(
          "POST",
          `/api/admin/tenants/${encodeURIComponent(data.id)}/${way}`,
          {
            amount,
            reference: reference.trim(),
            ...(description.trim() && { description: description.trim() }),
          },
        )
      ).data,
    onSuccess: async (given) => {
      await client.invalidateQueries({ queryKey: keys.tenant(data.id) });
      void client.invalidateQueries({ queryKey: keys.tenants });
      toast({
        text: (way === "credits" ? texts.credits.given : texts.credits.taken)(Math.abs(given.amount), given.balance),
        tone: "good",
      });
      onGiven();
      onClose();
    },
    // the tokens may have been added although the response was lost
    onError: () => void client.invalidateQueries({ queryKey: keys.tenant(data.id) }),
  });
  const errors = give.error instanceof Problem ? give.error.errors : {};
  const hasColon = reference.includes(":");
  const canGive = amount !== null && amount >= 1 && reference.trim() !== "" && !hasColon;
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (canGive) give.mutate();
  };
  const words = texts.credits;
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={(way === "credits" ? words.dialogTitle : words.takeTitle)(tenantName(data))}
      about={words.dialogAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" type="submit" form="give-tokens" disabled={!canGive} isBusy={give.isPending}>
            {(way === "credits" ? words.action : words.takeAction)(amount ?? 0)}
          </Button>
        </>
      }
    >
      <form id="give-tokens" className={sheet.form} onSubmit={send}>
        {give.error && <ErrorCard title={sentence(give.error)} />}
        <Field name={words.amount} problem={errors.amount}>
          <NumberField
            isWhole
            minimum={1}
            step={10}
            value={amount}
            onChange={(next) => setAmount(next === null ? null : Number(next))}
          />
        </Field>
        <Field
          name={words.reference}
          hint={words.referenceHint}
          problem={hasColon ? words.wrongReference : errors.reference}
        >
          <TextField maxLength={200} value={reference} onChange={(event) => setReference(event.target.value)} />
        </Field>
        <Field name={words.description} hint={words.descriptionHint} problem={errors.description}>
          <TextField maxLength={1000} value={description} onChange={(event) => setDescription(event.target.value)} />
        </Field>
      </form>
    </Dialog>
  );
}
