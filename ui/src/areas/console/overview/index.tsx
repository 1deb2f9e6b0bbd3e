import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { buttonClass } from "@/kit";
import { Header } from "@/kit/Header";
import { Segmented } from "@/kit/Segmented";
import { console as shared } from "@/texts/console";
import { overview as texts } from "@/texts/console-overview";
import { overview as overviewQuery } from "../queries/overview";
import { LoadingOrError } from "../shared/panels";
import { AttentionList } from "./AttentionList";
import { Charts } from "./Charts";
import styles from "./overview.module.css";
import { RecentDecisions } from "./RecentDecisions";
import { RunningJobs } from "./RunningJobs";
import { RANGES, rangeOf } from "./rules";
import { Tiles } from "./Tiles";

export default function OverviewPage() {
  const search = useSearch({ from: "/console/" });
  const navigate = useNavigate({ from: "/console/" });
  const range = rangeOf(search.range);
  const { data, error, isError } = useQuery(overviewQuery(range));
  return (
    <>
      <Header
        title={shared.pages.overview}
        actions={
          <Link to="/console/workers" search={{ open: "add" }} className={buttonClass({ look: "primary" })}>
            <Plus aria-hidden />
            {texts.addWorker}
          </Link>
        }
      >
        <Segmented
          name={texts.range}
          value={range}
          choices={RANGES.map((value) => ({ value, name: texts.ranges[value] }))}
          onChange={(next) => void navigate({ search: (before) => ({ ...before, range: next }), replace: true })}
        />
      </Header>
      <div className={styles.page}>
        <AttentionList now={data?.now} isOverviewFailed={isError} />
        {data ? (
          <>
            {/* while another range loads, the previous one is shown with its own labels */}
            <Tiles found={data} range={rangeOf(data.range)} />
            <Charts found={data} range={rangeOf(data.range)} />
          </>
        ) : (
          <LoadingOrError error={error} height={420} />
        )}
        <div className={styles.columns}>
          <RunningJobs now={data?.now} />
          <RecentDecisions />
        </div>
      </div>
    </>
  );
}
