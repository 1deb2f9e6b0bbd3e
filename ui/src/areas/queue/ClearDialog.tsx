import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { post } from "@/api/client";
import { keys } from "@/api/queries";
import { counted, type useDoing } from "@/areas/job/doing";
import { Button, Checkbox, Dialog, toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./queue.module.css";

const ENDED = ["completed", "failed", "canceled"] as const;

interface ClearDialogProps {
  isOpen: boolean;
  onClose: () => void;
  doing: ReturnType<typeof useDoing>;
}

/** Put what has ended out of sight, by how it did; or delete it. */
export function ClearDialog({ isOpen, onClose, doing }: ClearDialogProps) {
  const [chosen, setChosen] = useState<readonly string[]>(ENDED);
  const [deletes, setDeletes] = useState(false);
  const [keepsFiles, setKeepsFiles] = useState(true);
  // a batch is cleared as a whole, but its jobs are deleted each by itself: the numbers differ
  const { data: ended } = useQuery({
    queryKey: [...keys.queue, "clearing"],
    queryFn: async () => (await post("/api/queue/clear", { body: { status: [...ENDED], dry_run: true } })).data.found,
    enabled: isOpen,
  });
  // what is shown and what is deleted is the same: what ends while one looks is counted anew first
  const { data: deleted } = useQuery({
    queryKey: [...keys.queue, "ended"],
    queryFn: ({ signal }) =>
      counted(
        ENDED.map((status) => ({ filter: { status, in_queue: true } })),
        signal,
      ),
    enabled: isOpen && deletes,
  });
  const found = (status: (typeof ENDED)[number]) => deleted?.[ENDED.indexOf(status)];
  const number = (status: (typeof ENDED)[number]) => (deletes ? found(status)?.matched : ended?.[status]) ?? 0;
  const wanted = ENDED.filter((each) => chosen.includes(each) && number(each) > 0);
  const total = wanted.reduce((sum, each) => sum + number(each), 0);
  const { ask } = texts;

  async function run() {
    onClose();
    if (deletes) {
      const among = wanted.flatMap((status) => found(status)?.among ?? []);
      await doing.bulk("delete", among, { keep_files: keepsFiles });
      return;
    }
    try {
      const { data } = await post("/api/queue/clear", { body: { status: wanted, dry_run: false } });
      toast({ text: ask.cleared(data.cleared), tone: "good" });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      doing.refresh();
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
            {deletes ? ask.deleteYesMany(total) : ask.clearYes(total)}
          </Button>
        </>
      }
    >
      <div className={styles.choices}>
        {ENDED.map((status) => {
          const name = ask.clearWhat(common.status[status] ?? status, number(status));
          return (
            // biome-ignore lint/a11y/noLabelWithoutControl: the checkbox is in it
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
        {/* biome-ignore lint/a11y/noLabelWithoutControl: the checkbox is in it */}
        <label>
          <Checkbox name={ask.clearDeletes} isOn={deletes} onChange={setDeletes} />
          {ask.clearDeletes}
        </label>
        {deletes && (
          // biome-ignore lint/a11y/noLabelWithoutControl: the checkbox is in it
          <label>
            <Checkbox name={ask.keepFiles} isOn={keepsFiles} onChange={setKeepsFiles} />
            {ask.keepFiles}
          </label>
        )}
      </div>
    </Dialog>
  );
}
