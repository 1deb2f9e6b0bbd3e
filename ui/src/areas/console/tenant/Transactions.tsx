import { useInfiniteQuery } from "@tanstack/react-query";
import { Coins } from "lucide-react";
import { EmptyState } from "@/kit";
import { Table } from "@/kit/Table";
import { shared } from "@/texts/console-shared";
import { tenant as texts } from "@/texts/console-tenants";
import { MorePages, QueryResult, RelativeTime, Section, sheet } from "../shared/sheet";
import { type Transaction, transactions } from "../tenants/queries";

export function Transactions({ id }: { id: string }) {
  const found = useInfiniteQuery(transactions(id));
  const words = texts.transactions;
  return (
    <Section title={words.title}>
      <QueryResult query={found}>
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
                  { id: "at", name: words.columns.at, show: (each) => <RelativeTime at={each.created_at} /> },
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
              <MorePages query={found} />
            </>
          );
        }}
      </QueryResult>
    </Section>
  );
}
