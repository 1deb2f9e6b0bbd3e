import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { ArrowLeft, FileQuestion, Hourglass, Trash2 } from "lucide-react";
import { Problem, sentence } from "@/api/problem";
import { job as jobQuery } from "@/api/queries";
import type { Job } from "@/api/types";
import { jobTitle } from "@/jobs/job";
import { Viewer } from "@/jobs/Viewer";
import { buttonClass, EmptyState, ErrorCard, Skeleton } from "@/kit";
import { studio } from "@/texts/studio";
import { isMissingOutput } from "./queries";
import { StudioHeader } from "./StudioHeader";
import styles from "./studio.module.css";
import { VideoActions } from "./VideoActions";
import { VideoFacts } from "./VideoFacts";
import videoPageStyles from "./VideoPage.module.css";
import { VideoState } from "./VideoState";

const texts = studio.video;

export default function VideoPage() {
  const { id } = useParams({ from: "/studio/videos/$id" });
  const { data: job, error } = useQuery(jobQuery(id));
  const isNotFound = error instanceof Problem && [404, 422].includes(error.status);
  return (
    <>
      <StudioHeader title={job ? jobTitle(job) : texts.title} />
      {!job && isNotFound && (
        <EmptyState icon={FileQuestion} title={texts.gone} text={texts.goneText}>
          <Link to="/studio/videos" className={buttonClass({})}>
            {texts.back}
          </Link>
        </EmptyState>
      )}
      {!job && error && !isNotFound && (
        <div className={styles.content}>
          <ErrorCard title={sentence(error)} />
        </div>
      )}
      {!job && !error && (
        <div className={styles.content} role="status" aria-label={studio.loading}>
          <Skeleton height={420} />
        </div>
      )}
      {job && <Page key={job.id} job={job} />}
    </>
  );
}

function Page({ job }: { job: Job }) {
  return (
    <div className={videoPageStyles.videoPage} data-status={job.status}>
      <div className={styles.main}>
        <Link to="/studio/videos" className={styles.back}>
          <ArrowLeft aria-hidden />
          {texts.back}
        </Link>
        {isMissingOutput(job) ? (
          <div className={videoPageStyles.goneView}>
            {job.is_expired ? (
              <EmptyState icon={Hourglass} title={texts.expired} text={texts.expiredText} />
            ) : (
              <EmptyState icon={Trash2} title={texts.deleted} text={texts.deletedText} />
            )}
          </div>
        ) : (
          <Viewer job={job} at={0} onAt={() => undefined} isLarge />
        )}
      </div>
      <aside className={styles.side} aria-label={texts.stepsName}>
        <VideoState job={job} />
        <VideoActions job={job} />
        <VideoFacts job={job} />
      </aside>
    </div>
  );
}
