import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Ban, Ellipsis, KeyRound, ShieldCheck, ShieldOff, UserCheck } from "lucide-react";
import { useState } from "react";
import { Button, Dialog, IconButton, Menu, toast, toastProblem } from "@/kit";
import { Table } from "@/kit/Table";
import { common } from "@/texts/common";
import { shared } from "@/texts/console-shared";
import { tenants as list, tenant as texts } from "@/texts/console-tenants";
import { RelativeTime, Section, State, sheet } from "../shared/sheet";
import { useVersion } from "../shared/use-version";
import { LinkDialog } from "../tenants/LinkDialog";
import { changeUser, keys, type ResetLink, resetLink, type TenantDetails, type User } from "../tenants/queries";

interface PendingConfirm {
  user: User;
  about: "disable" | "promote";
}

export function Users({ tenant: data }: { tenant: TenantDetails }) {
  const client = useQueryClient();
  const [link, setLink] = useState<ResetLink | null>(null);
  const [asked, setAsked] = useState<PendingConfirm | null>(null);
  const words = texts.users;
  const versioned = useVersion(data, asked !== null);
  const change = useMutation({
    mutationFn: ({ user, body }: { user: User; body: Parameters<typeof changeUser>[1]; message: string }) =>
      versioned(
        (version) => changeUser(user.id, body, version),
        () => client.refetchQueries({ queryKey: keys.tenant(data.id), exact: true }),
      ),
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
          { id: "seen", name: words.columns.seen, show: (each) => <RelativeTime at={each.last_sign_in_at} /> },
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
