import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Ellipsis, Eraser, Pause, Play, Plus, RotateCcw } from "lucide-react";
import { counts as countsQuery } from "@/api/queries";
import type { JobActions } from "@/jobs/use-job-actions";
import { useQueuePause } from "@/jobs/use-queue-pause";
import { Button, buttonClass, Chip, FilterChip, IconButton, Menu } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { useCommands } from "@/lib/commands";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./QueueHeader.module.css";
import { jobStatus, STATUSES } from "./rules";
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
  const hasEnded = count("completed") + count("failed") + count("canceled") > 0;
  const { isPaused, pause, resume } = useQueuePause();
  const resumePaused = () => void actions.bulk("resume", [{ filter: { status: "paused" } }]);
  const retryAll = () => void actions.bulk("retry", [{ filter: { status: "failed", in_queue: true } }]);
  const group = common.palette.page;
  useCommands([
    isPaused
      ? { id: "queue-resume", name: common.pause.resume, group, icon: Play, run: resume }
      : { id: "queue-pause", name: texts.pauseAfter, group, icon: Pause, run: () => pause("after") },
    { id: "queue-retry", name: texts.retryFailed, group, icon: RotateCcw, run: retryAll },
    { id: "queue-clear", name: texts.clear, group, icon: Eraser, run: onClear },
  ]);
  return (
    <>
      {isPaused ? (
        <Button icon={Play} className={styles.wideOnly ?? ""} onClick={resume}>
          {common.pause.resume}
        </Button>
      ) : (
        <Button icon={Pause} className={styles.wideOnly ?? ""} onClick={() => pause("after")}>
          {texts.pauseAfter}
        </Button>
      )}
      <Menu
        items={[
          [
            { name: texts.pauseAfter, icon: Pause, isDisabled: isPaused, run: () => pause("after") },
            // also interrupts what still runs in a paused queue
            { name: texts.pauseNow, icon: Pause, isDisabled: isPaused && !count("running"), run: () => pause("now") },
            { name: common.pause.resume, icon: Play, isDisabled: !isPaused, run: resume },
            { name: texts.resumePaused, icon: Play, isDisabled: !count("paused"), run: resumePaused },
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
