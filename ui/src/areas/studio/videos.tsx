import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Clapperboard, Hourglass, Trash2 } from "lucide-react";
import { sentence } from "@/api/problem";
import type { Job } from "@/api/types";
import { jobTitle } from "@/jobs/job";
import { describeProgress } from "@/jobs/progress";
import { Button, buttonClass, EmptyState, ErrorCard, FilterChip, Progress, Skeleton, StatusBadge } from "@/kit";
import { kindOf, Media } from "@/kit/Media";
import { SearchField } from "@/kit/SearchField";
import { ago } from "@/texts/common";
import { studio } from "@/texts/studio";
import { Placeholder } from "./Cover";
import styles from "./cards.module.css";
import { isMissingOutput, isWaiting, matchesState, myVideos, STATES, type State } from "./queries";
import { StudioHeader } from "./StudioHeader";
import studioStyles from "./studio.module.css";

const texts = studio.list;

const withSearch = (status: State | undefined, q: string) => ({ ...(status && { status }), ...(q && { q }) });

export default function Videos() {
  const { status: asked, q = "" } = useSearch({ from: "/studio/videos" });
  const state = STATES.find((each) => each === asked);
  const navigate = useNavigate({ from: "/studio/videos" });
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(myVideos(state, q));
  // a live update may move a job out of the filter
  const jobs = data?.pages.flatMap((each) => each.items).filter((each) => !state || matchesState(each, state));
  return (
    <>
      <StudioHeader title={studio.videos} />
      <div className={studioStyles.content}>
        <SearchField
          value={q}
          placeholder={texts.search}
          onChange={(next) => void navigate({ search: withSearch(state, next), replace: true })}
        />
        <div className={styles.chips} role="group" aria-label={texts.filter}>
          <FilterChip isOn={!state} onClick={() => void navigate({ search: withSearch(undefined, q) })}>
            {texts.all}
          </FilterChip>
          {STATES.map((each) => (
            <FilterChip key={each} isOn={state === each} onClick={() => void navigate({ search: withSearch(each, q) })}>
              {texts.statuses[each]}
            </FilterChip>
          ))}
        </div>
        {error && !data && <ErrorCard title={sentence(error)} />}
        {!jobs && !error && (
          <div className={styles.videos} role="status" aria-label={studio.loading}>
            {["a", "b", "c", "d"].map((each) => (
              <Skeleton key={each} height={220} />
            ))}
          </div>
        )}
        {jobs && jobs.length > 0 && (
          <ul className={styles.videos} aria-label={texts.name}>
            {jobs.map((each) => (
              <li key={each.id}>
                <VideoCard job={each} />
              </li>
            ))}
          </ul>
        )}
        {jobs?.length === 0 && (
          <EmptyState
            icon={Clapperboard}
            title={q ? texts.nothing : state ? texts.emptyFilter : texts.empty}
            {...(!state && !q && { text: texts.emptyText })}
          >
            <Link to="/studio" className={buttonClass({ look: "primary" })}>
              {texts.choose}
            </Link>
          </EmptyState>
        )}
        {hasNextPage && (
          <Button className={studioStyles.more ?? ""} isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
            {texts.more}
          </Button>
        )}
      </div>
    </>
  );
}

function VideoCard({ job }: { job: Job }) {
  const [output] = job.outputs;
  const gone = isMissingOutput(job) ? (job.is_expired ? texts.expired : texts.deleted) : undefined;
  const { value: part } = describeProgress(job.progress);
  return (
    <Link to="/studio/videos/$id" params={{ id: job.id }} className={styles.card} data-state={job.status}>
      <span className={styles.cover}>
        {output ? (
          <Media file={output} name="" />
        ) : job.input?.mime_type ? (
          <span className={styles.faded}>
            <Media
              file={{ url: job.input.url, mime_type: job.input.mime_type, poster_url: job.input.poster_url ?? null }}
              name=""
              playsOnHover={false}
            />
          </span>
        ) : (
          <Placeholder hueKey={job.workflow_slug ?? job.id} kind={kindOf("video/mp4")} />
        )}
        {gone && (
          <span className={styles.expired}>
            {job.is_expired ? <Hourglass aria-hidden /> : <Trash2 aria-hidden />}
            {gone}
          </span>
        )}
        {job.status === "processing" && !isWaiting(job) && (
          <span className={styles.cardBar}>
            <Progress value={part} name={studio.video.running} />
          </span>
        )}
      </span>
      <span className={styles.cardText}>
        <strong>{jobTitle(job)}</strong>
        <span>
          <StatusBadge status={gone ? "canceled" : job.status}>{gone}</StatusBadge>
          {ago(job.created_at)}
        </span>
      </span>
    </Link>
  );
}
