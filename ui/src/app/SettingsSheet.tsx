import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, put } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import { Button, Dialog, ErrorCard, Heading, Skeleton, toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { settings as texts } from "@/texts/settings";
import { PasswordSetting } from "./PasswordSetting";
import { type DeskSetting, SettingField, type SettingValue } from "./SettingField";
import styles from "./SettingsSheet.module.css";
import { TestNotifications } from "./TestNotifications";

const settingsQuery = queryOptions({
  queryKey: [...keys.desk, "settings"] as const,
  queryFn: ({ signal }) => get("/api/desk/settings", { signal }),
  staleTime: 0,
});

/** The settings of the desk, written to its configuration file. */
export default function SettingsSheet({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const { data, error } = useQuery(settingsQuery);
  const [changes, setChanges] = useState<Readonly<Record<string, SettingValue>>>({});
  const [problems, setProblems] = useState<Readonly<Record<string, string>>>({});
  const [isBusy, setBusy] = useState(false);
  const save = async () => {
    setBusy(true);
    try {
      const body = { values: changes as Record<string, never> };
      const answer = await put("/api/desk/settings", { body });
      client.setQueryData(settingsQuery.queryKey, answer.data);
      setChanges({});
      setProblems({});
      toast({ text: answer.message ?? texts.saved, tone: "good" });
      await client.invalidateQueries({ queryKey: keys.desk });
    } catch (thrown) {
      if (thrown instanceof Problem) setProblems(thrown.errors);
      toastProblem(thrown);
    } finally {
      setBusy(false);
    }
  };
  const groups = [...new Set(data?.items.map((each) => each.group))];
  const current = ({ name, value }: DeskSetting): SettingValue =>
    name in changes ? (changes[name] ?? null) : (value as SettingValue);
  return (
    <Dialog
      isOpen
      isWide
      onClose={onClose}
      title={texts.title}
      about={data && texts.about(data.file)}
      actions={
        <>
          <Button onClick={onClose}>{common.close}</Button>
          <Button look="primary" isBusy={isBusy} disabled={!Object.keys(changes).length} onClick={() => void save()}>
            {texts.save}
          </Button>
        </>
      }
    >
      {error && <ErrorCard title={sentence(error)} />}
      {!data && !error && <Skeleton height={320} />}
      <div className={styles.sheet}>
        {groups.map((group) => {
          const own = data?.items.filter((each) => each.group === group) ?? [];
          const urls = own.find((each) => each.name === "desk.notify_urls");
          return (
            <section key={group} className={styles.group} aria-label={group}>
              <Heading>{group}</Heading>
              {own.map((each) => (
                <SettingField
                  key={each.name}
                  setting={each}
                  value={current(each)}
                  problem={problems[each.name] ?? null}
                  onChange={(value) => setChanges((before) => ({ ...before, [each.name]: value }))}
                />
              ))}
              {urls && <TestNotifications urls={(current(urls) ?? []) as readonly string[]} />}
              {own.some((each) => each.name === "desk.allowed_hosts") && data && (
                <PasswordSetting hasPassword={data.has_password} />
              )}
            </section>
          );
        })}
      </div>
    </Dialog>
  );
}
