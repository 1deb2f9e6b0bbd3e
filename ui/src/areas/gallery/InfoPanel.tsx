import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Copy } from "lucide-react";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { textOf } from "@/api/json";
import { ComfyuiLinks } from "@/jobs/ComfyuiLinks";
import { Chip, Heading, IconButton, Skeleton, TextArea, toast, toastProblem } from "@/kit";
import { breakable } from "@/kit/breakable";
import { Facts } from "@/kit/Facts";
import { Inspector } from "@/kit/Inspector";
import { useLatest } from "@/lib/use-latest";
import { useSession } from "@/session/session";
import { clock, size } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { job } from "@/texts/job";
import styles from "./InfoPanel.module.css";
import type { Item } from "./item";
import { useOutputMutations } from "./output-mutations";
import { aboutJob, collections } from "./queries";

export async function copyText(text: string, message: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast({ text: message, tone: "good" });
  } catch (thrown) {
    toastProblem(thrown);
  }
}

/** The path of an output's file on this machine and the ComfyUI that made the output; null if unknown. */
export function useOrigin(item: Item | undefined): { path: string | null; comfyui: string | null } {
  const { data } = useQuery({ ...aboutJob(item?.job_id ?? ""), enabled: item !== undefined });
  const own = data?.files.find((each) => each.output_number === item?.number);
  return { path: own ? String(own.path) : null, comfyui: data?.comfyui_url ?? null };
}

export function InfoPanel({ item, onClose }: { item: Item; onClose: () => void }) {
  const { data: about, isPending } = useQuery(aboutJob(item.job_id));
  const { data: allCollections } = useQuery(collections);
  const { desk } = useSession();
  const { path } = useOrigin(item);
  const { info } = texts;
  const inside = allCollections?.filter((each) => item.collections.includes(each.id)) ?? [];
  const whole = about?.inputs.find((each) => item.prompt && String(each.value).startsWith(item.prompt.slice(0, 40)));
  const prompt = whole ? String(whole.value) : item.prompt;
  const values = about?.inputs.filter((each) => each !== whole) ?? [];
  const facts: [string, ReactNode][] = [
    [
      info.workflow,
      <Link key="w" to="/gallery" search={{ workflow: item.workflow_slug }}>
        {item.workflow_name}
      </Link>,
    ],
    [
      info.batch,
      item.batch_id && (
        <>
          <Link to="/gallery" search={{ batch: item.batch_id }}>
            {item.batch_label ?? texts.filters.oneBatch}
          </Link>
          , {info.item(item.item_no + 1)}
        </>
      ),
    ],
    [info.seed, item.seed === null ? "" : String(item.seed)],
    [info.made, texts.moment(item.created_at)],
    [info.pixels, item.width && item.height ? `${item.width} × ${item.height}` : ""],
    [info.length, item.seconds ? clock(item.seconds) : ""],
    [info.file, [item.filename, item.size === null ? "" : size(item.size)].filter(Boolean).join(" · ")],
    [info.type, item.mime_type],
    [info.path, path],
    [
      job.comfyui,
      about && about.workflow_slug !== desk?.script_workflow && (
        <ComfyuiLinks key="comfyui" jobId={item.job_id} about={about} />
      ),
    ],
  ];
  return (
    <div className={styles.info}>
      <Inspector name={info.title} title={info.title} onClose={onClose}>
        {prompt && (
          <section className={styles.section}>
            <div className={styles.sectionHead}>
              <Heading>{info.prompt}</Heading>
              <IconButton
                icon={Copy}
                size="small"
                name={texts.verbs.copyPrompt}
                onClick={() => void copyText(prompt, texts.copiedPrompt)}
              />
            </div>
            <p className={styles.prompt}>{prompt}</p>
          </section>
        )}
        <Note key={item.id} item={item} />
        {inside.length > 0 && (
          <section className={styles.section}>
            <Heading>{info.collections}</Heading>
            <div className={styles.chips}>
              {inside.map((each) => (
                <Chip key={each.id}>{each.name}</Chip>
              ))}
            </div>
          </section>
        )}
        <Facts facts={facts} />
        {(isPending || about) && (
          <section className={styles.section}>
            <Heading>{info.values}</Heading>
            {isPending ? (
              <Skeleton height={80} />
            ) : values.length ? (
              <Facts
                facts={values.map((each) => [
                  each.label,
                  <span key={each.key} className={each.is_default ? styles.byDefault : undefined}>
                    {breakable(textOf(each.value))}
                  </span>,
                ])}
              />
            ) : (
              <p className={styles.byDefault}>{info.noValues}</p>
            )}
          </section>
        )}
      </Inspector>
    </div>
  );
}

/** Saved on blur, and when another output is shown. */
function Note({ item }: { item: Item }) {
  const mutations = useOutputMutations();
  const [text, setText] = useState(item.note ?? "");
  const saved = useRef(item.note ?? "");
  const save = () => {
    const note = text.trim();
    if (note === saved.current) return;
    saved.current = note;
    mutations
      .note(item.id, note)
      .then(() => toast({ text: texts.info.noteSaved, tone: "good" }))
      .catch(toastProblem);
  };
  const latestSave = useLatest(save);
  useEffect(() => () => latestSave.current(), [latestSave]);
  return (
    <section className={styles.section}>
      <Heading>{texts.info.note}</Heading>
      <TextArea
        rows={2}
        aria-label={texts.info.note}
        placeholder={texts.info.notePlaceholder}
        value={text}
        maxLength={10_000}
        onChange={(event) => setText(event.target.value)}
        onBlur={save}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          // leave the field, keep the lightbox open
          event.stopPropagation();
          event.currentTarget.blur();
        }}
      />
    </section>
  );
}
