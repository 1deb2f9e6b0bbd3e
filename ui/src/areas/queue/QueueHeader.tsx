import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Ellipsis, Eraser, Pause, Play, Plus, RotateCcw } from "lucide-react";
import { counts as countsQuery } from "@/api/queries";
import type { JobActions } from "@/jobs/use-job-actions";
import { Button, buttonClass, Chip, FilterChip, IconButton, Menu } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { useCommands } from "@/lib/commands";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./QueueHeader.module.css";
import { jobStatus, STATUSES, statusesToPause } from "./rules";
import { SavedViews } from "./SavedViews";
import type { useQueueSearch } from "./use-queue-search";

interface QueueHeaderProps {
  queue: ReturnType<typeof useQueueSearch>;
  actions: JobActions;
  /** Name of the workflow that the list is filtered by. */
  workflowName: string | undefined;
  onClear: () => void;
}

/** Search, filters, and actions on the whole queue. */
export function QueueHeader({ queue, actions, workflowName, onClear }: QueueHeaderProps) {
  const { search, change, setFilters } = queue;
  const { data } = useQuery(countsQuery);
  const count = (status: string) => data?.counts[jobStatus(status)] ?? 0;
  const total = Object.values(data?.counts ?? {}).reduce((sum, each) => sum + each, 0);
  return (
    <Header
      title={texts.title}
      search={
        <SearchField value={search.q ?? ""} placeholder={texts.search} onChange={(q) => change({ q, sel: "" })} />
      }
      actions={<QueueActions count={count} actions={actions} onClear={onClear} />}
    >
      <FilterChip isOn={!search.status} count={total} onClick={() => change({ status: "", sel: "" })}>
        {texts.all}
      </FilterChip>
      {STATUSES.filter((each) => count(each) > 0 || each === search.status).map((each) => (
        <FilterChip
          key={each}
          isOn={search.status === each}
          count={count(each)}
          onClick={() => change({ status: search.status === each ? "" : each, sel: "" })}
        >
          {common.status[each]}
        </FilterChip>
      ))}
      <SavedViews
        search={{
          status: search.status ?? "",
          workflow: search.workflow ?? "",
          q: search.q ?? "",
          sort: search.sort ?? "",
        }}
        onChange={setFilters}
      />
      {search.workflow && (
        <Chip onRemove={() => change({ workflow: "", sel: "" })}>{workflowName ?? search.workflow}</Chip>
      )}
    </Header>
  );
}

interface QueueActionsProps {
  count: (status: string) => number;
  actions: JobActions;
  onClear: () => void;
}

function QueueActions({ count, actions, onClear }: QueueActionsProps) {
  const hasActive = count("waiting") > 0 || count("running") > 0;
  const hasEnded = count("completed") + count("failed") + count("canceled") > 0;
  const isPaused = count("paused") > 0 && !hasActive;
  // "after" lets running jobs finish; jobs that a worker fetched to run next are returned
  const pauseAll = (mode: "after" | "now") =>
    void actions.bulk(
      "pause",
      statusesToPause(mode).map((status) => ({ filter: { status } })),
      { mode },
    );
  const resumeAll = () => void actions.bulk("resume", [{ filter: { status: "paused" } }]);
  const retryAll = () => void actions.bulk("retry", [{ filter: { status: "failed", in_queue: true } }]);
  const group = common.palette.page;
  useCommands([
    { id: "queue-pause", name: texts.pauseAfter, group, icon: Pause, run: () => pauseAll("after") },
    { id: "queue-resume", name: texts.resumeAll, group, icon: Play, run: resumeAll },
    { id: "queue-retry", name: texts.retryFailed, group, icon: RotateCcw, run: retryAll },
    { id: "queue-clear", name: texts.clear, group, icon: Eraser, run: onClear },
  ]);
  return (
    <>
      {isPaused ? (
        <Button icon={Play} onClick={resumeAll}>
          {texts.resumeAll}
        </Button>
      ) : (
        <Button icon={Pause} className={styles.wideOnly ?? ""} disabled={!hasActive} onClick={() => pauseAll("after")}>
          {texts.pauseAfter}
        </Button>
      )}
      <Menu
        items={[
          [
            { name: texts.pauseAfter, icon: Pause, isDisabled: !hasActive, run: () => pauseAll("after") },
            { name: texts.pauseNow, icon: Pause, isDisabled: !hasActive, run: () => pauseAll("now") },
            { name: texts.resumeAll, icon: Play, isDisabled: !count("paused"), run: resumeAll },
            { name: texts.retryFailed, icon: RotateCcw, isDisabled: !count("failed"), run: retryAll },
          ],
          [{ name: texts.clear, icon: Eraser, isDisabled: !hasEnded, run: onClear }],
        ]}
      >
        <IconButton icon={Ellipsis} name={texts.queueMenu} look="plain" />
      </Menu>
      <Link to="/create" className={buttonClass({ look: "primary" })}>
        <Plus aria-hidden />
        {common.areas.create}
      </Link>
    </>
  );
}
