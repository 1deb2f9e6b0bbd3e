import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Files, ImageUp } from "lucide-react";
import { useState } from "react";
import { remove } from "@/api/client";
import { sentence } from "@/api/problem";
import { Button, EmptyState, ErrorCard, Heading, Skeleton, toast, toastProblem } from "@/kit";
import { ago, size } from "@/texts/common";
import { wallet } from "@/texts/wallet";
import { type StoredUpload, uploads } from "./queries";
import styles from "./wallet.module.css";

const texts = wallet.uploads;

export function Uploads() {
  const client = useQueryClient();
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(uploads);
  const stored = data?.pages[0]?.stored;
  const all = data?.pages.flatMap((page) => page.items);
  const reload = () => client.invalidateQueries({ queryKey: uploads.queryKey });
  return (
    <div className={styles.column}>
      <p className={styles.quiet}>{texts.about}</p>
      <Heading>{texts.list}</Heading>
      {stored && <p>{texts.stored(stored)}</p>}
      {error && !all && <ErrorCard title={sentence(error)} />}
      {!all && !error && <Skeleton height={140} />}
      {all?.length === 0 && <EmptyState icon={Files} title={texts.empty} text={texts.emptyText} />}
      {all && all.length > 0 && (
        <ul className={styles.rows} aria-label={texts.list}>
          {all.map((upload) => (
            <UploadRow key={upload.id} upload={upload} onDeleted={() => void reload()} />
          ))}
        </ul>
      )}
      {hasNextPage && (
        <Button className={styles.more ?? ""} isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {wallet.more}
        </Button>
      )}
    </div>
  );
}

function UploadRow({ upload, onDeleted }: { upload: StoredUpload; onDeleted: () => void }) {
  const [isBusy, setBusy] = useState(false);
  const name = upload.original_filename ?? upload.id;
  const deleteUpload = async () => {
    setBusy(true);
    try {
      await remove("/api/videos/uploads/{file_id}", { path: { file_id: upload.id } });
      toast({ text: texts.deleted(name) });
      onDeleted();
    } catch (problem) {
      toastProblem(problem);
    } finally {
      setBusy(false);
    }
  };
  return (
    <li className={styles.row}>
      <span className={styles.icon}>
        <ImageUp aria-hidden />
      </span>
      <span className={styles.what}>
        <strong>{name}</strong>
        <span>
          {texts.uploaded(ago(upload.created_at))} · {size(upload.size ?? 0)} ·{" "}
          {upload.is_used ? texts.used : texts.unused}
        </span>
      </span>
      <Button size="small" isBusy={isBusy} aria-label={texts.deleteName(name)} onClick={() => void deleteUpload()}>
        {texts.delete}
      </Button>
    </li>
  );
}
