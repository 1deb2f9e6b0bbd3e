import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { UserPlus, Users } from "lucide-react";
import { type FormEvent, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, Dialog, EmptyState, ErrorCard, Field, Switch, TextField } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { Table } from "@/kit/Table";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { shared } from "@/texts/console-shared";
import { newAccount, tenants as texts } from "@/texts/console-tenants";
import { MorePages, QueryResult, RelativeTime, Sheet, State, sheet } from "../shared/sheet";
import { LinkDialog } from "./LinkDialog";
import { keys, type ResetLink, type Tenant, tenants } from "./queries";

export default function TenantsPage() {
  const { q = "", open = "" } = useSearch({ from: "/console/tenants" });
  const navigate = useNavigate({ from: "/console/tenants" });
  const { me } = useSession();
  const found = useInfiniteQuery(tenants(q));
  const [link, setLink] = useState<ResetLink | null>(null);
  const set = (part: Record<string, string | undefined>) =>
    void navigate({ search: (before) => ({ ...before, ...part }), replace: true });
  const { columns } = texts;
  return (
    <>
      <Header
        title={console_.pages.tenants}
        search={<SearchField value={q} placeholder={texts.find} onChange={(next) => set({ q: next })} />}
        actions={
          <Button look="primary" icon={UserPlus} onClick={() => set({ open: "new" })}>
            {texts.add}
          </Button>
        }
      />
      <Sheet>
        <QueryResult query={found}>
          {({ pages }) => {
            const rows = pages.flatMap((each) => each.items);
            if (!rows.length)
              return (
                <EmptyState
                  icon={Users}
                  title={q ? common.nothingFound : texts.emptyTitle}
                  text={q ? texts.none : texts.empty}
                />
              );
            return (
              <>
                <Table<Tenant>
                  name={console_.pages.tenants}
                  rows={rows}
                  keyOf={(each) => each.id}
                  columns={[
                    {
                      id: "who",
                      name: columns.who,
                      sort: (each) => each.email,
                      show: (each) => (
                        <div className={sheet.rowName}>
                          <Link to="/console/tenants/$id" params={{ id: each.id }}>
                            {each.email}
                          </Link>
                          <span>
                            {[each.name !== each.email && each.name, each.user_id === me.id && texts.you]
                              .filter(Boolean)
                              .join(" · ")}
                          </span>
                        </div>
                      ),
                    },
                    {
                      id: "role",
                      name: columns.role,
                      sort: (each) => Number(each.is_admin),
                      show: (each) =>
                        each.is_disabled ? (
                          <State tone="bad">{texts.disabled}</State>
                        ) : each.is_admin ? (
                          <State tone="busy">{texts.admin}</State>
                        ) : (
                          <span className={sheet.muted}>{texts.user}</span>
                        ),
                    },
                    {
                      id: "since",
                      name: columns.since,
                      sort: (each) => each.created_at,
                      show: (each) => <RelativeTime at={each.created_at} />,
                    },
                    {
                      id: "balance",
                      name: columns.balance,
                      align: "end",
                      sort: (each) => each.balance ?? -1,
                      show: (each) => (each.balance === null ? texts.unreachable : shared.count(each.balance)),
                    },
                  ]}
                />
                <MorePages query={found} />
              </>
            );
          }}
        </QueryResult>
      </Sheet>
      {open === "new" && (
        <NewAccount
          onClose={() => set({ open: undefined })}
          onMade={(made) => {
            set({ open: undefined });
            setLink(made);
          }}
        />
      )}
      {link && (
        <LinkDialog
          link={link}
          title={newAccount.doneTitle(link.email)}
          about={newAccount.doneAbout}
          onClose={() => setLink(null)}
        />
      )}
    </>
  );
}

function NewAccount({ onClose, onMade }: { onClose: () => void; onMade: (link: ResetLink) => void }) {
  const client = useQueryClient();
  const [email, setEmail] = useState("");
  const [name, setName] = useState("");
  const [isAdmin, setAdmin] = useState(false);
  const make = useMutation({
    mutationFn: async () =>
      (
        await call<ResetLink>("POST", "/api/admin/users", {
          email: email.trim(),
          ...(name.trim() && { name: name.trim() }),
          is_admin: isAdmin,
        })
      ).data,
    onSuccess: (data) => {
      void client.invalidateQueries({ queryKey: keys.tenants });
      onMade(data);
    },
  });
  const errors = make.error instanceof Problem ? make.error.errors : {};
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (email.trim()) make.mutate();
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={newAccount.title}
      about={newAccount.about}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" type="submit" form="new-account" disabled={!email.trim()} isBusy={make.isPending}>
            {newAccount.action}
          </Button>
        </>
      }
    >
      <form id="new-account" className={sheet.form} onSubmit={send} noValidate>
        {make.error && !errors.email && <ErrorCard title={sentence(make.error)} />}
        <Field name={newAccount.email} problem={errors.email} isRequired>
          <TextField
            type="email"
            autoComplete="off"
            spellCheck={false}
            value={email}
            onChange={(event) => setEmail(event.target.value)}
          />
        </Field>
        <Field name={newAccount.name} hint={newAccount.nameHint} problem={errors.name}>
          <TextField maxLength={200} value={name} onChange={(event) => setName(event.target.value)} />
        </Field>
        <Switch name={newAccount.isAdmin} hint={newAccount.isAdminHint} isOn={isAdmin} onChange={setAdmin} />
      </form>
    </Dialog>
  );
}
