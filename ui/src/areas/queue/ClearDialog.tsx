import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { post } from "@/api/client";
import { keys } from "@/api/queries";
import { countJobs } from "@/jobs/bulk";
import type { JobActions } from "@/jobs/use-job-actions";
import { Button, Checkbox, Dialog, toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./ClearDialog.module.css";

const ENDED = ["completed", "failed", "canceled"] as const;

interface ClearDialogProps {
  isOpen: boolean;
  onClose: () => void;
  actions: JobActions;
}

/** Removes finished jobs from the queue by status, or deletes them. */
export function ClearDialog({ isOpen, onClose, actions }: ClearDialogProps) {
  const [chosen, setChosen] = useState<readonly (typeof ENDED)[number][]>(ENDED);
  const [deletes, setDeletes] = useState(false);
  const [keepsFiles, setKeepsFiles] = useState(true);
  // batches are cleared as a whole, but their jobs are deleted one by one
  const { data: cleared } = useQuery({
    queryKey: [...keys.queue, "clearing", chosen],
    queryFn: async () => (await post("/api/queue/clear", { body: { status: [...chosen], dry_run: true } })).data,
    enabled: isOpen && chosen.length > 0,
    placeholderData: keepPreviousData,
  });
  // pins the selection, so that exactly the shown number of jobs is deleted
  const { data: deleted } = useQuery({
    queryKey: [...keys.queue, "ended"],
    queryFn: ({ signal }) =>
      countJobs(
        ENDED.map((status) => ({ filter: { status, in_queue: true } })),
        signal,
      ),
    enabled: isOpen && deletes,
  });
  const found = (status: (typeof ENDED)[number]) => deleted?.[ENDED.indexOf(status)];
  const number = (status: (typeof ENDED)[number]) => (deletes ? found(status)?.matched : cleared?.found[status]) ?? 0;
  const wanted = ENDED.filter((each) => chosen.includes(each) && number(each) > 0);
  const deletable = wanted.reduce((sum, each) => sum + number(each), 0);
  const total = deletes ? deletable : wanted.length ? (cleared?.cleared ?? 0) : 0;
  const { ask } = texts;

  async function run() {
    onClose();
    if (deletes) {
      const selections = wanted.flatMap((status) => found(status)?.selection ?? []);
      await actions.bulk("delete", selections, { keep_files: keepsFiles });
      return;
    }
    try {
      const { data } = await post("/api/queue/clear", { body: { status: [...chosen], dry_run: false } });
      toast({ text: ask.cleared(data.cleared), tone: "good" });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      actions.refresh();
    }
  }

  return (
    <Dialog
      isOpen={isOpen}
      onClose={onClose}
      title={ask.clearTitle}
      about={ask.clearText}
      actions={
        <>
          <Button onClick={onClose}>{ask.keep}</Button>
          <Button look={deletes ? "danger" : "primary"} disabled={!total} onClick={() => void run()}>
            {deletes ? ask.confirmDeleteMany(total) : ask.confirmClear(total)}
          </Button>
        </>
      }
    >
      <div className={styles.choices}>
        {ENDED.map((status) => {
          const name = ask.clearStatus(common.status[status] ?? status, number(status));
          return (
            // biome-ignore lint/a11y/noLabelWithoutControl: the label contains the checkbox
            <label key={status}>
              <Checkbox
                name={name}
                isOn={chosen.includes(status)}
                isDisabled={!number(status)}
                onChange={(isOn) => setChosen(isOn ? [...chosen, status] : chosen.filter((each) => each !== status))}
              />
              {name}
            </label>
          );
        })}
        <hr />
        {/* biome-ignore lint/a11y/noLabelWithoutControl: the label contains the checkbox */}
        <label>
          <Checkbox name={ask.clearDeletes} isOn={deletes} onChange={setDeletes} />
          {ask.clearDeletes}
        </label>
        {deletes && (
          // biome-ignore lint/a11y/noLabelWithoutControl: the label contains the checkbox
          <label>
            <Checkbox name={ask.keepFiles} isOn={keepsFiles} onChange={setKeepsFiles} />
            {ask.keepFiles}
          </label>
        )}
      </div>
    </Dialog>
  );
}
