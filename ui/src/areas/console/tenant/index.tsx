import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { Ban, Coins, Ellipsis, KeyRound, ShieldCheck, ShieldOff, UserCheck } from "lucide-react";
import { type FormEvent, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { me } from "@/api/queries";
import {
  Button,
  buttonClass,
  Dialog,
  EmptyState,
  ErrorCard,
  Field,
  IconButton,
  Menu,
  NumberField,
  TextField,
  toast,
  toastProblem,
} from "@/kit";
import { Header } from "@/kit/Header";
import { Table } from "@/kit/Table";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { shared } from "@/texts/console-shared";
import { tenants as list, tenant as texts } from "@/texts/console-tenants";
import { BackTo, Facts, Fetched, MorePages, Section, Sheet, State, sheet, When } from "../sheet";
import {
  changeTenant,
  changeUser,
  keys,
  newReference,
  type ResetLink,
  resetLink,
  type TenantDetails,
  type Transaction,
  tenant,
  transactions,
  type User,
} from "../tenants/data";
import { LinkDialog } from "../tenants/LinkDialog";

export default function TenantPage() {
  const { id } = useParams({ from: "/console/tenants/$id" });
  const found = useQuery(tenant(id));
  return (
    <>
      <Header
        title={found.data ? nameOf(found.data) : console_.pages.tenant}
        actions={
          <Link to="/console/dispatches" search={{ tenant: id }} className={buttonClass({})}>
            {texts.jobs}
          </Link>
        }
      >
        <BackTo to="/console/tenants" name={console_.pages.tenants} />
      </Header>
      <Sheet>
        <Fetched of={found}>
          {(data) => (
            <>
              <div className={sheet.columns}>
                <div className={sheet.column}>
                  <Credits tenant={data} />
                  <Limits tenant={data} />
                </div>
                <Section title={texts.facts.title}>
                  <Facts
                    facts={[
                      [shared.name, data.name],
                      [texts.facts.id, <code key="id">{data.id}</code>],
                      [texts.facts.shard, data.shard],
                      [texts.facts.since, <When key="since" at={data.created_at} />],
                      [
                        texts.facts.active,
                        data.active_jobs === null ? list.unreachable : shared.count(data.active_jobs),
                      ],
                    ]}
                  />
                </Section>
              </div>
              <UsersOf tenant={data} />
              <Transactions id={id} />
            </>
          )}
        </Fetched>
      </Sheet>
    </>
  );
}

/** By the email of who it was made for. */
const nameOf = (data: TenantDetails): string => data.users[0]?.email ?? data.name;

function Credits({ tenant: data }: { tenant: TenantDetails }) {
  const { data: who } = useQuery(me);
  const [isGiving, setGiving] = useState(false);
  // kept until it is known that they were given: who tries again after an answer that was lost gives once
  const [reference, setReference] = useState<string | null>(null);
  const open = () => {
    setReference((known) => known ?? newReference(who?.email ?? ""));
    setGiving(true);
  };
  return (
    <Section
      title={texts.credits.title}
      aside={
        <Button look="primary" icon={Coins} onClick={open}>
          {texts.credits.give}
        </Button>
      }
    >
      <p>
        <span className={sheet.big}>{data.balance === null ? list.unreachable : shared.count(data.balance)}</span>
      </p>
      {isGiving && reference !== null && (
        <Giving
          tenant={data}
          reference={reference}
          setReference={setReference}
          onGiven={() => setReference(null)}
          onClose={() => setGiving(false)}
        />
      )}
    </Section>
  );
}

interface GivingProps {
  tenant: TenantDetails;
  reference: string;
  setReference: (reference: string) => void;
  onGiven: () => void;
  onClose: () => void;
}

function Giving({ tenant: data, reference, setReference, onGiven, onClose }: GivingProps) {
  const client = useQueryClient();
  const [amount, setAmount] = useState<number | null>(100);
  const [description, setDescription] = useState("");
  const give = useMutation({
    mutationFn: async () =>
      (
        await call<{ amount: number; balance: number }>(
          "POST",
          `/api/admin/tenants/${encodeURIComponent(data.id)}/credits`,
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
      toast({ text: texts.credits.given(given.amount, given.balance), tone: "good" });
      onGiven();
      onClose();
    },
    // they may have been given, though nobody heard of it
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
      title={words.dialogTitle(nameOf(data))}
      about={words.dialogAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" type="submit" form="give-tokens" disabled={!canGive} isBusy={give.isPending}>
            {words.action(amount ?? 0)}
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

function Limits({ tenant: data }: { tenant: TenantDetails }) {
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

interface Asked {
  user: User;
  about: "disable" | "promote";
}

function UsersOf({ tenant: data }: { tenant: TenantDetails }) {
  const client = useQueryClient();
  const [link, setLink] = useState<ResetLink | null>(null);
  const [asked, setAsked] = useState<Asked | null>(null);
  const words = texts.users;
  const change = useMutation({
    mutationFn: ({ user, body }: { user: User; body: Parameters<typeof changeUser>[1]; message: string }) =>
      changeUser(user.id, body),
    onSuccess: async (_data, { message }) => {
      setAsked(null);
      await client.invalidateQueries({ queryKey: keys.tenant(data.id) });
      void client.invalidateQueries({ queryKey: keys.tenants });
      toast({ text: message, tone: "good" });
    },
    onError: (thrown) => {
      setAsked(null);
      toastProblem(thrown);
    },
  });
  const askLink = (user: User) => void resetLink(user.id).then(setLink, toastProblem);
  const disable = (user: User, isOff: boolean) =>
    change.mutate({
      user,
      body: { is_disabled: isOff },
      message: isOff ? words.disabledNow(user.email) : words.enabledNow(user.email),
    });
  const makeAdmin = (user: User, isAdmin: boolean) =>
    change.mutate({ user, body: { is_admin: isAdmin }, message: words.changed(user.email) });
  return (
    <Section title={words.title}>
      <Table<User>
        name={words.title}
        rows={data.users}
        keyOf={(each) => each.id}
        columns={[
          {
            id: "who",
            name: words.columns.who,
            show: (each) => (
              <div className={sheet.rowName}>
                <strong>{each.email}</strong>
                {each.name !== each.email && <span>{each.name}</span>}
              </div>
            ),
          },
          {
            id: "role",
            name: words.columns.role,
            show: (each) =>
              each.is_admin ? (
                <State tone="busy">{list.admin}</State>
              ) : (
                <span className={sheet.muted}>{list.user}</span>
              ),
          },
          {
            id: "state",
            name: words.columns.state,
            show: (each) => (
              <State tone={each.is_disabled ? "bad" : each.has_password ? "good" : "warn"}>
                {each.is_disabled ? words.disabled : each.has_password ? words.enabled : words.invited}
              </State>
            ),
          },
          {
            id: "tokens",
            name: words.columns.tokens,
            align: "end",
            show: (each) => shared.count(each.api_tokens),
          },
          { id: "seen", name: words.columns.seen, show: (each) => <When at={each.last_sign_in_at} /> },
          {
            id: "actions",
            name: words.columns.actions,
            align: "end",
            show: (each) => (
              <Menu
                items={[
                  [
                    { name: words.resetLink, icon: KeyRound, run: () => askLink(each) },
                    each.is_admin
                      ? { name: words.demote, icon: ShieldOff, run: () => makeAdmin(each, false) }
                      : {
                          name: words.promote,
                          icon: ShieldCheck,
                          run: () => setAsked({ user: each, about: "promote" }),
                        },
                  ],
                  [
                    each.is_disabled
                      ? { name: words.enable, icon: UserCheck, run: () => disable(each, false) }
                      : {
                          name: words.disable,
                          icon: Ban,
                          isDanger: true,
                          run: () => setAsked({ user: each, about: "disable" }),
                        },
                  ],
                ]}
              >
                <IconButton icon={Ellipsis} name={words.more(each.email)} />
              </Menu>
            ),
          },
        ]}
      />
      {link && <LinkDialog link={link} onClose={() => setLink(null)} />}
      {asked && (
        <Dialog
          isOpen
          onClose={() => setAsked(null)}
          title={
            asked.about === "disable" ? words.disableTitle(asked.user.email) : words.promoteTitle(asked.user.email)
          }
          about={asked.about === "disable" ? words.disableAbout : words.promoteAbout}
          actions={
            <>
              <Button onClick={() => setAsked(null)}>{common.cancel}</Button>
              {asked.about === "disable" ? (
                <Button look="danger" isBusy={change.isPending} onClick={() => disable(asked.user, true)}>
                  {words.disable}
                </Button>
              ) : (
                <Button look="primary" isBusy={change.isPending} onClick={() => makeAdmin(asked.user, true)}>
                  {words.promote}
                </Button>
              )}
            </>
          }
        />
      )}
    </Section>
  );
}

function Transactions({ id }: { id: string }) {
  const found = useInfiniteQuery(transactions(id));
  const words = texts.transactions;
  return (
    <Section title={words.title}>
      <Fetched of={found}>
        {({ pages }) => {
          const rows = pages.flatMap((each) => each.items);
          if (!rows.length) return <EmptyState icon={Coins} title={words.none} />;
          return (
            <>
              <Table<Transaction>
                name={words.title}
                rows={rows}
                keyOf={(each) => String(each.id)}
                columns={[
                  { id: "at", name: words.columns.at, show: (each) => <When at={each.created_at} /> },
                  {
                    id: "what",
                    name: words.columns.what,
                    show: (each) => (
                      <div className={sheet.rowName}>
                        {words.kinds[each.type] ?? each.type}
                        {each.description && <span>{each.description}</span>}
                      </div>
                    ),
                  },
                  {
                    id: "reference",
                    name: words.columns.reference,
                    show: (each) => (
                      <span className={sheet.faint}>{each.reference ?? each.job_id ?? shared.nothing}</span>
                    ),
                  },
                  {
                    id: "amount",
                    name: words.columns.amount,
                    align: "end",
                    show: (each) => `${each.amount > 0 ? "+" : ""}${shared.count(each.amount)}`,
                  },
                ]}
              />
              <MorePages of={found} />
            </>
          );
        }}
      </Fetched>
    </Section>
  );
}
