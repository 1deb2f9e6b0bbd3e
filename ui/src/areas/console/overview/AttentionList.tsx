import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleCheck, TriangleAlert } from "lucide-react";
import { Button, buttonClass, toast, toastProblem } from "@/kit";
import { overview as texts } from "@/texts/console-overview";
import { worker as workerWords } from "@/texts/console-workers";
import { deliveryCounts, type Overview, outages as outagesQuery } from "../queries/overview";
import { someWorkers, workerActions } from "../queries/workers";
import { consoleKeys } from "../shared/live";
import styles from "./AttentionList.module.css";
import { busyWorkers } from "./RunningJobs";
import { type Notice, noticesOf } from "./rules";
import { useAutoscaledFleets } from "./use-autoscaled-fleets";

export function AttentionList({
  now,
  isOverviewFailed,
}: {
  now: Overview["now"] | undefined;
  isOverviewFailed: boolean;
}) {
  const workers = useQuery(busyWorkers);
  const counts = workers.data?.counts ?? {};
  const { data: shut } = useQuery({ ...someWorkers("revoked", 1), enabled: !!counts.revoked });
  const { data: broken } = useQuery({ ...someWorkers("no_comfyui", 1), enabled: !!counts.no_comfyui });
  const { data: offline } = useQuery({ ...someWorkers("offline", 1), enabled: !!counts.offline });
  const deliveries = useQuery(deliveryCounts);
  const outages = useQuery(outagesQuery);
  const { fleets, isKnown, isFailed } = useAutoscaledFleets();
  const { dead, max_counted } = deliveries.data ?? { dead: 0, max_counted: 1 };
  const notices = noticesOf({
    now: workers.data && now,
    workers: { counts, shut: shut?.items[0], offline: offline?.items[0], broken: broken?.items[0] },
    outages: outages.data?.items ?? [],
    fleets,
    dead,
    isMoreDead: dead >= max_counted,
  });
  const hasFailed = isOverviewFailed || workers.isError || deliveries.isError || outages.isError || isFailed;
  const isAllKnown = now && workers.data && deliveries.data && outages.data?.checked_at && isKnown;
  return (
    <section aria-label={texts.attention.title}>
      {(hasFailed || notices.length > 0) && (
        <ul className={styles.notices}>
          {hasFailed && (
            <li className={styles.notice} data-tone="warn">
              <TriangleAlert aria-hidden />
              <div className={styles.noticeText}>
                <strong>{texts.attention.unknown}</strong>
                <span>{texts.attention.unknownAside}</span>
              </div>
            </li>
          )}
          {notices.map((each) => (
            <NoticeLine key={each.key} notice={each} />
          ))}
        </ul>
      )}
      {/* only once all checks are known */}
      {notices.length === 0 && !hasFailed && isAllKnown && (
        <p className={styles.calm}>
          <CircleCheck aria-hidden />
          {texts.attention.nothing}
        </p>
      )}
    </section>
  );
}

function NoticeLine({ notice }: { notice: Notice }) {
  const client = useQueryClient();
  const approve = useMutation({
    mutationFn: (id: string) => workerActions.approve(id),
    onSuccess: async () => {
      toast({ text: workerWords.did.approve, tone: "good" });
      await client.invalidateQueries({ queryKey: consoleKeys.workers });
    },
    onError: toastProblem,
  });
  const { approve: worker } = notice;
  return (
    <li className={styles.notice} data-tone={notice.tone}>
      <TriangleAlert aria-hidden />
      <div className={styles.noticeText}>
        <strong>{notice.text}</strong>
        <span>{notice.aside}</span>
      </div>
      {worker !== undefined && (
        <Button size="small" isBusy={approve.isPending} onClick={() => approve.mutate(worker)}>
          {texts.attention.approve}
        </Button>
      )}
      <Link
        {...notice.link}
        className={buttonClass({ size: "small" })}
        aria-label={`${texts.attention.open}: ${notice.text}`}
      >
        {texts.attention.open}
      </Link>
    </li>
  );
}
