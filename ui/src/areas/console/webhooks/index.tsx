import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { RotateCw, Webhook } from "lucide-react";
import { Button, EmptyState, FilterChip, toast, toastProblem } from "@/kit";
import { Header } from "@/kit/Header";
import { Table } from "@/kit/Table";
import { console as console_ } from "@/texts/console";
import { webhooks as texts } from "@/texts/console-operation";
import { shared } from "@/texts/console-shared";
import { DELIVERY_STATES, type Delivery, deliveries, keys, redeliver, type Stuck, stuck } from "../operations/queries";
import { MorePages, QueryResult, RelativeTime, Section, Sheet, State, sheet, type Tone } from "../shared/sheet";

const FILTERS = [...DELIVERY_STATES, "all"];
const TONES: Readonly<Record<string, Tone>> = {
  dead: "bad",
  failing: "warn",
  pending: "busy",
  delivered: "good",
};

export default function WebhooksPage() {
  const { status = "dead" } = useSearch({ from: "/console/webhooks" });
  const navigate = useNavigate({ from: "/console/webhooks" });
  const client = useQueryClient();
  const found = useInfiniteQuery(deliveries(DELIVERY_STATES.find((each) => each === status) ?? null));
  const again = useMutation({
    mutationFn: (each: Delivery) => redeliver(each.id),
    onSuccess: () => toast({ text: texts.redelivered, tone: "good" }),
    onError: toastProblem,
    onSettled: () => client.invalidateQueries({ queryKey: keys.deliveries }),
  });
  const { columns } = texts;
  return (
    <>
      <Header title={console_.pages.webhooks}>
        {FILTERS.map((each) => (
          <FilterChip
            key={each}
            isOn={status === each}
            onClick={() => void navigate({ search: each === "dead" ? {} : { status: each }, replace: true })}
          >
            {texts.filters[each] ?? each}
          </FilterChip>
        ))}
      </Header>
      <Sheet>
        <p className={sheet.about}>{texts.about}</p>
        <QueryResult query={found}>
          {({ pages }) => {
            const rows = pages.flatMap((each) => each.items);
            if (!rows.length)
              return <EmptyState icon={Webhook} title={texts.emptyTitle} text={texts.empty[status] ?? ""} />;
            return (
              <>
                <Table<Delivery>
                  name={console_.pages.webhooks}
                  rows={rows}
                  keyOf={(each) => each.id}
                  columns={[
                    {
                      id: "to",
                      name: columns.to,
                      show: (each) => (
                        <div className={sheet.rowName}>
                          <strong>{each.url}</strong>
                          <span>{texts.ofJob(each.job_id)}</span>
                        </div>
                      ),
                    },
                    {
                      id: "tenant",
                      name: columns.tenant,
                      isLong: true,
                      show: (each) => (
                        <Link to="/console/tenants/$id" params={{ id: each.tenant_id }}>
                          {each.tenant_email ?? each.tenant_id}
                        </Link>
                      ),
                    },
                    {
                      id: "status",
                      name: columns.status,
                      show: (each) => (
                        <State tone={TONES[each.status] ?? "idle"}>{texts.filters[each.status] ?? each.status}</State>
                      ),
                    },
                    {
                      id: "attempts",
                      name: columns.attempts,
                      align: "end",
                      show: (each) => shared.count(each.attempts),
                    },
                    {
                      id: "problem",
                      name: columns.problem,
                      isLong: true,
                      show: (each) => <span className={sheet.faint}>{lastResponse(each)}</span>,
                    },
                    {
                      id: "at",
                      name: columns.at,
                      show: (each) => <RelativeTime at={each.delivered_at ?? each.created_at} />,
                    },
                    {
                      id: "actions",
                      name: columns.actions,
                      align: "end",
                      show: (each) => (
                        <Button
                          size="small"
                          icon={RotateCw}
                          aria-label={texts.redeliverOf(each.url)}
                          isBusy={again.isPending && again.variables?.id === each.id}
                          onClick={() => again.mutate(each)}
                        >
                          {texts.redeliver}
                        </Button>
                      ),
                    },
                  ]}
                />
                <MorePages query={found} />
              </>
            );
          }}
        </QueryResult>
        <StuckSteps />
      </Sheet>
    </>
  );
}

const lastResponse = ({ last_error, last_status_code }: Delivery): string =>
  last_error ?? (last_status_code === null ? shared.nothing : texts.answered(last_status_code));

/** Outbox entries that did not arrive. */
function StuckSteps() {
  const found = useQuery(stuck);
  return (
    <Section title={texts.outbox.title} about={texts.outbox.about}>
      <QueryResult query={found}>
        {(items: Stuck[]) =>
          items.length ? (
            <ul className={sheet.list}>
              {items.map((each) => (
                <li key={`${each.direction} ${each.shard} ${each.id}`}>
                  <span className={sheet.line}>
                    <span className={sheet.grow}>
                      {texts.outbox.what(each.direction, each.job_ids.length, each.shard)}
                    </span>
                    <RelativeTime at={each.created_at} />
                  </span>
                  <span className={sheet.faint}>{each.job_ids.join(", ")}</span>
                </li>
              ))}
            </ul>
          ) : (
            <p className={sheet.muted}>{texts.outbox.none}</p>
          )
        }
      </QueryResult>
    </Section>
  );
}
