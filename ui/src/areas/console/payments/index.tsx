import { infiniteQueryOptions, queryOptions, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Coins } from "lucide-react";
import { get } from "@/api/client";
import type { components } from "@/api/schema";
import { EmptyState, FilterChip, StatusBadge } from "@/kit";
import { Header } from "@/kit/Header";
import { Table } from "@/kit/Table";
import { console as console_ } from "@/texts/console";
import { payments as texts } from "@/texts/console-payments";
import { shared } from "@/texts/console-shared";
import { parseAuditQuery } from "../operations/queries";
import { PeriodFilter } from "../shared/filters";
import { MorePages, QueryResult, RelativeTime, Section, Sheet, sheet } from "../shared/sheet";

type Payment = components["schemas"]["ReceivedPayment"];
type Revenue = components["schemas"]["Revenue"];

const GROUPS = ["effect", "tenant", "day"] as const;

interface Period {
  from?: string;
  to?: string;
}

const payments = (period: Period) =>
  infiniteQueryOptions({
    queryKey: ["console", "payments", period] as const,
    queryFn: ({ pageParam, signal }) =>
      get("/api/admin/payments", { query: { limit: 50, ...period, ...(pageParam && { cursor: pageParam }) }, signal }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

const revenue = (by: (typeof GROUPS)[number], period: Period) =>
  queryOptions({
    queryKey: ["console", "revenue", by, period] as const,
    queryFn: ({ signal }) => get("/api/admin/usage/revenue", { query: { by, ...period }, signal }),
  });

export default function PaymentsPage() {
  const search = useSearch({ from: "/console/payments" });
  const { tab } = search;
  const { search: _, ...period } = parseAuditQuery(search);
  const navigate = useNavigate({ from: "/console/payments" });
  const by = GROUPS.find((each) => each === tab) ?? "effect";
  const earned = useQuery(revenue(by, period));
  const found = useInfiniteQuery(payments(period));
  const change = (next: typeof search) => void navigate({ search: { ...search, ...next }, replace: true });
  return (
    <>
      <Header title={console_.pages.payments}>
        {GROUPS.map((each) => (
          <FilterChip key={each} isOn={by === each} onClick={() => change({ tab: each === "effect" ? "" : each })}>
            {texts.by[each]}
          </FilterChip>
        ))}
        <PeriodFilter period={search} onChange={change} />
      </Header>
      <Sheet>
        <Section title={texts.revenue} about={texts.revenueAbout}>
          <QueryResult query={earned}>
            {(rows) => (rows.length ? <RevenueTable rows={rows} by={by} /> : <p>{texts.noRevenue}</p>)}
          </QueryResult>
        </Section>
        <Section title={console_.pages.payments} about={texts.about}>
          <QueryResult query={found}>
            {({ pages }) => {
              const rows = pages.flatMap((each) => each.items);
              if (!rows.length) return <NoPayments isFiltered={Boolean(period.from || period.to)} />;
              return (
                <>
                  <PaymentTable rows={rows} />
                  <MorePages query={found} />
                </>
              );
            }}
          </QueryResult>
        </Section>
      </Sheet>
    </>
  );
}

export const NoPayments = ({ isFiltered }: { isFiltered: boolean }) => (
  <EmptyState
    icon={Coins}
    title={isFiltered ? texts.noneInPeriod : texts.empty}
    text={isFiltered ? texts.noneInPeriodAdvice : texts.emptyAdvice}
  />
);

/** Whether the payment arrived after its account was deleted, and the money was not returned yet. */
const needsRefund = (payment: Payment) => payment.is_refused && payment.refunded < payment.amount;

function RevenueTable({ rows, by }: { rows: readonly Revenue[]; by: (typeof GROUPS)[number] }) {
  const { columns } = texts;
  return (
    <Table<Revenue>
      name={texts.revenue}
      rows={rows}
      keyOf={(each) => each.name}
      columns={[
        { id: "name", name: texts.by[by], isLong: true, show: (each) => <strong>{each.name}</strong> },
        { id: "jobs", name: columns.jobs, align: "end", show: (each) => shared.count(each.jobs) },
        { id: "tokens", name: columns.tokens, align: "end", show: (each) => shared.count(each.tokens) },
        {
          id: "revenue",
          name: columns.revenue,
          align: "end",
          show: (each) => (each.revenue === null ? texts.unknown : console_.money(each.revenue)),
        },
        {
          id: "seconds",
          name: columns.seconds,
          align: "end",
          show: (each) => shared.count(Math.round(each.gpu_seconds)),
        },
        {
          id: "cost",
          name: columns.cost,
          align: "end",
          show: (each) => console_.cost(each.cost, each.gpu_seconds, each.unpriced_seconds),
        },
      ]}
    />
  );
}

export function PaymentTable({ rows }: { rows: readonly Payment[] }) {
  const { columns } = texts;
  return (
    <Table<Payment>
      name={console_.pages.payments}
      rows={rows}
      keyOf={(each) => each.event_id}
      columns={[
        {
          id: "who",
          name: columns.who,
          isLong: true,
          show: (each) => (
            <div className={sheet.rowName}>
              <Link to="/console/tenants/$id" params={{ id: each.tenant_id }}>
                {each.email ?? each.tenant_id}
              </Link>
              <span>{each.event_id}</span>
              {needsRefund(each) && <span>{texts.notCreditedAdvice}</span>}
            </div>
          ),
        },
        { id: "amount", name: columns.tokens, align: "end", show: (each) => shared.count(each.amount) },
        {
          id: "refunded",
          name: columns.refunded,
          align: "end",
          show: (each) =>
            needsRefund(each) ? (
              <StatusBadge status="failed">{texts.notCredited}</StatusBadge>
            ) : each.refunded ? (
              shared.count(each.refunded)
            ) : (
              "–"
            ),
        },
        { id: "currency", name: columns.currency, show: (each) => each.currency ?? "–" },
        { id: "at", name: columns.at, show: (each) => <RelativeTime at={each.created_at} /> },
      ]}
    />
  );
}
