import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { Settings2 } from "lucide-react";
import { textOf } from "@/api/json";
import { EmptyState, FilterChip } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { Table } from "@/kit/Table";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { settings as texts } from "@/texts/console-operation";
import { type Setting, settings } from "../operations/queries";
import { QueryResult, Sheet, State, sheet } from "../shared/sheet";
import { AlertRules } from "./AlertRules";

const isChanged = (setting: Setting): boolean => setting.source !== "default";

export default function SettingsPage() {
  const { q = "", status = "" } = useSearch({ from: "/console/settings" });
  const navigate = useNavigate({ from: "/console/settings" });
  const found = useQuery(settings);
  const set = (part: Record<string, string | undefined>) =>
    void navigate({ search: (before) => ({ ...before, ...part }), replace: true });
  const wanted = q.toLowerCase();
  const fits = (each: Setting) =>
    (status !== "changed" || isChanged(each)) &&
    `${each.name} ${each.variable} ${each.description} ${shownValue(each)}`.toLowerCase().includes(wanted);
  return (
    <>
      <Header
        title={console_.pages.settings}
        search={<SearchField value={q} placeholder={texts.find} onChange={(next) => set({ q: next })} />}
      >
        <FilterChip
          isOn={status !== "changed"}
          count={found.data?.items.length}
          onClick={() => set({ status: undefined })}
        >
          {texts.filters.all}
        </FilterChip>
        <FilterChip
          isOn={status === "changed"}
          count={found.data?.items.filter(isChanged).length}
          onClick={() => set({ status: status === "changed" ? undefined : "changed" })}
        >
          {texts.filters.changed}
        </FilterChip>
      </Header>
      <Sheet>
        {!q && <AlertRules />}
        <p className={sheet.about}>
          {texts.about} {found.data && texts.version(found.data.version)}
        </p>
        <QueryResult query={found}>
          {({ items }) => {
            const rows = items.filter(fits);
            if (!rows.length) return <EmptyState icon={Settings2} title={common.nothingFound} />;
            return (
              <Table<Setting>
                name={console_.pages.settings}
                rows={rows}
                keyOf={(each) => each.name}
                columns={[
                  {
                    id: "name",
                    name: texts.columns.name,
                    sort: (each) => each.name,
                    show: (each) => (
                      <div className={sheet.rowName}>
                        <code>{each.variable}</code>
                        <span>{each.description}</span>
                      </div>
                    ),
                  },
                  {
                    id: "value",
                    name: texts.columns.value,
                    isLong: true,
                    show: (each) => (
                      <span className={isHidden(each) ? sheet.unset : sheet.mono}>{shownValue(each)}</span>
                    ),
                  },
                  {
                    id: "source",
                    name: texts.columns.source,
                    sort: (each) => each.source,
                    show: (each) => (
                      <State tone={isChanged(each) ? "busy" : "idle"}>
                        {texts.sources[each.source] ?? each.source}
                      </State>
                    ),
                  },
                ]}
              />
            );
          }}
        </QueryResult>
      </Sheet>
    </>
  );
}

const isUnset = (value: unknown): boolean => value === null || value === undefined || value === "";
const isHidden = ({ value, is_secret }: Setting): boolean => is_secret || isUnset(value);

/** For a secret, shows only whether it is set. */
export function shownValue(setting: Setting): string {
  const { value, is_secret } = setting;
  if (is_secret) return isChanged(setting) ? texts.hidden : texts.unset;
  if (isUnset(value)) return texts.unset;
  return textOf(value);
}
