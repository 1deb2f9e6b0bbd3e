import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { Download, ScrollText } from "lucide-react";
import { queryOf } from "@/api/client";
import { textOf } from "@/api/json";
import { buttonClass, EmptyState } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { Table } from "@/kit/Table";
import { common } from "@/texts/common";
import { console as console_ } from "@/texts/console";
import { audit as texts } from "@/texts/console-operation";
import { type AuditEntry, auditLog, parseAuditQuery } from "../operations/queries";
import { PeriodFilter } from "../shared/filters";
import { MorePages, QueryResult, RelativeTime, Sheet, State, sheet } from "../shared/sheet";

const FORMATS = ["csv", "jsonl"] as const;

/** The changes that people made on this server. */
export default function AuditPage() {
  const search = useSearch({ from: "/console/audit" });
  const asked = parseAuditQuery(search);
  const { q = "" } = search;
  const navigate = useNavigate({ from: "/console/audit" });
  const found = useInfiniteQuery(auditLog(asked));
  const { columns } = texts;
  const change = (next: typeof search) => void navigate({ search: { ...search, ...next }, replace: true });
  return (
    <>
      <Header
        title={console_.pages.audit}
        search={<SearchField value={q} placeholder={texts.find} onChange={(next) => change({ q: next })} />}
        actions={FORMATS.map((format) => (
          <a
            key={format}
            className={buttonClass({})}
            href={`/api/admin/audit/export${queryOf({ format, ...asked })}`}
            download
          >
            <Download size={16} aria-hidden />
            {texts.export[format]}
          </a>
        ))}
      >
        <PeriodFilter period={search} onChange={change} />
      </Header>
      <Sheet>
        <p className={sheet.about}>{texts.about}</p>
        <QueryResult query={found}>
          {({ pages }) => {
            const rows = pages.flatMap((each) => each.items);
            if (!rows.length)
              return (
                <EmptyState
                  icon={ScrollText}
                  title={Object.keys(asked).length ? common.nothingFound : texts.empty}
                  text={texts.emptyText}
                />
              );
            return (
              <>
                <Table<AuditEntry>
                  name={console_.pages.audit}
                  rows={rows}
                  keyOf={(each) => String(each.id)}
                  columns={[
                    {
                      id: "who",
                      name: columns.who,
                      show: (each) => (
                        <div className={sheet.rowName}>
                          <strong>{each.actor}</strong>
                          <span>{each.address ?? texts.onHost}</span>
                        </div>
                      ),
                    },
                    {
                      id: "what",
                      name: columns.what,
                      show: (each) => (
                        <div className={sheet.rowName}>
                          <strong>{each.action.replaceAll("_", " ")}</strong>
                          <span>{each.subject}</span>
                        </div>
                      ),
                    },
                    {
                      id: "change",
                      name: columns.change,
                      isLong: true,
                      show: (each) => <Change entry={each} />,
                    },
                    { id: "at", name: columns.at, show: (each) => <RelativeTime at={each.created_at} /> },
                  ]}
                />
                <MorePages query={found} />
              </>
            );
          }}
        </QueryResult>
      </Sheet>
    </>
  );
}

function Change({ entry }: { entry: AuditEntry }) {
  const before: Record<string, unknown> = entry.before ?? {};
  const after: Record<string, unknown> = entry.after ?? {};
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return (
    <div className={sheet.rowName}>
      {!entry.is_done && <State tone="warn">{texts.unknown}</State>}
      {names.map((name) => (
        <span key={name}>
          {name}: {name in before && <del>{textOf(before[name])}</del>}{" "}
          {name in after && <ins>{textOf(after[name])}</ins>}
        </span>
      ))}
    </div>
  );
}
