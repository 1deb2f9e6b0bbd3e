import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { call, get } from "@/api/client";
import { sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import type { Workflow } from "@/api/types";
import { formatTime } from "@/jobs/dates";
import { Button, Dialog, Skeleton, toast, toastProblem } from "@/kit";
import { create as texts } from "@/texts/create";
import type { Choice } from "./inputs";
import styles from "./VersionsDialog.module.css";

/** Lists the versions of a workflow with their changes, and restores any of them. */
export function VersionsDialog({ choice, onClose }: { choice: Choice; onClose: () => void }) {
  const client = useQueryClient();
  const [busy, setBusy] = useState<number | null>(null);
  const path = { slug: choice.slug };
  const { data, error } = useQuery({
    queryKey: ["workflow-versions", choice.slug] as const,
    queryFn: ({ signal }) => get("/api/workflows/{slug}/versions", { path, signal }),
    staleTime: 0,
  });
  const restore = async (number: number) => {
    setBusy(number);
    try {
      const at = `/api/workflows/${encodeURIComponent(choice.slug)}/versions/${number}/bring-back`;
      const { message } = await call<Workflow>("POST", at);
      toast({ text: message ?? "", tone: "good" });
      onClose();
      await client.invalidateQueries({ queryKey: keys.workflows });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setBusy(null);
    }
  };
  return (
    <Dialog isOpen isWide onClose={onClose} title={texts.versions.title(choice.name)} about={texts.versions.about}>
      {error && <p role="alert">{sentence(error)}</p>}
      {!data && !error && <Skeleton height={72} />}
      {data?.items.length === 0 && <p>{texts.versions.none}</p>}
      <ol className={styles.versions}>
        {data?.items.map((version) => (
          <li key={version.number}>
            <div className={styles.text}>
              <p>
                <strong>{texts.versions.number(version.number)}</strong>
                <time dateTime={version.created_at}>{formatTime(version.created_at)}</time>
              </p>
              {version.changes.map((change) => (
                <p key={change} className={styles.change} dir="auto">
                  {change}
                </p>
              ))}
            </div>
            {version.is_current ? (
              <span className={styles.current}>{texts.versions.current}</span>
            ) : (
              <Button
                size="small"
                isBusy={busy === version.number}
                aria-label={texts.versions.restoreNamed(version.number)}
                onClick={() => void restore(version.number)}
              >
                {texts.versions.restore}
              </Button>
            )}
          </li>
        ))}
      </ol>
    </Dialog>
  );
}
