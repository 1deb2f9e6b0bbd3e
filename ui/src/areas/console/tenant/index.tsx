import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { buttonClass } from "@/kit";
import { Header } from "@/kit/Header";
import { console as console_ } from "@/texts/console";
import { shared } from "@/texts/console-shared";
import { tenants as list, tenant as texts } from "@/texts/console-tenants";
import { BackTo, Facts, QueryResult, RelativeTime, Section, Sheet, sheet } from "../shared/sheet";
import { tenant } from "../tenants/queries";
import { Credits, tenantName } from "./Credits";
import { Limits } from "./Limits";
import { Transactions } from "./Transactions";
import { Users } from "./Users";

export default function TenantPage() {
  const { id } = useParams({ from: "/console/tenants/$id" });
  const found = useQuery(tenant(id));
  return (
    <>
      <Header
        title={found.data ? tenantName(found.data) : console_.pages.tenant}
        actions={
          <Link to="/console/dispatches" search={{ tenant: id }} className={buttonClass({})}>
            {texts.jobs}
          </Link>
        }
      >
        <BackTo to="/console/tenants" name={console_.pages.tenants} />
      </Header>
      <Sheet>
        <QueryResult query={found}>
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
                      [texts.facts.since, <RelativeTime key="since" at={data.created_at} />],
                      [
                        texts.facts.active,
                        data.active_jobs === null ? list.unreachable : shared.count(data.active_jobs),
                      ],
                    ]}
                  />
                </Section>
              </div>
              <Users tenant={data} />
              <Transactions id={id} />
            </>
          )}
        </QueryResult>
      </Sheet>
    </>
  );
}
