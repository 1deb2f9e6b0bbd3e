import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import {
  AudioLines,
  Clapperboard,
  FileText,
  ImageIcon,
  SquareTerminal,
  TriangleAlert,
  Workflow as WorkflowIcon,
} from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import { Heading, Skeleton } from "@/kit";
import { breakable } from "@/kit/breakable";
import { useSession } from "@/session/session";
import { create as texts } from "@/texts/create";
import { type Choice, isFile, isPrompt } from "./inputs";
import { missing } from "./queries";
import { useWasVisible } from "./use-was-visible";
import styles from "./WorkflowPicker.module.css";

const ICONS: Record<string, typeof ImageIcon> = {
  image: ImageIcon,
  video: Clapperboard,
  audio: AudioLines,
  text: FileText,
};

/** `image · prompt → video` */
export function describeChoice(choice: Choice): string {
  if (choice.waiting) return texts.takes.waits ?? "";
  if (choice.isScript) return texts.takes.script ?? "";
  const inputs = choice.properties
    .filter((each) => isFile(each) && each.required)
    .map((each) => texts.takes[each.type]);
  const prompt = choice.properties.some(isPrompt) ? [texts.takes.prompt] : [];
  const made = texts.makes[choice.outputMime.split("/")[0] ?? ""];
  const taken = [...new Set([...inputs, ...prompt])].join(" · ");
  return [taken, made].filter(Boolean).join(" → ");
}

interface WorkflowPickerProps {
  choices: readonly Choice[] | undefined;
  chosen: Choice | null;
  isFiltered: boolean;
}

export function WorkflowPicker({ choices, chosen, isFiltered }: WorkflowPickerProps) {
  const own = choices?.filter((each) => each.kind === "workflow") ?? [];
  const { desk } = useSession();
  const effects = choices?.filter((each) => each.kind === "effect") ?? [];
  return (
    <nav className={styles.list} aria-label={texts.workflows}>
      {!choices && <Skeleton height={72} />}
      {isFiltered && !choices?.length && <p className={styles.note}>{texts.nothingFound}</p>}
      {own.length > 0 && <Heading>{texts.own}</Heading>}
      {own.map((each) => (
        <WorkflowLink key={each.slug} choice={each} isChosen={each === chosen} />
      ))}
      {effects.length > 0 && <Heading>{desk ? texts.examples : texts.effects}</Heading>}
      {effects.map((each) => (
        <WorkflowLink key={each.slug} choice={each} isChosen={each === chosen} />
      ))}
    </nav>
  );
}

function WorkflowLink({ choice, isChosen }: { choice: Choice; isChosen: boolean }) {
  const [isGone, setGone] = useState(false);
  const link = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) link.current?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [isChosen]);
  const isSeen = useWasVisible(link);
  const { data: unmet } = useQuery({ ...missing(choice), ...(!isSeen && { enabled: false }) });
  const Icon = choice.isScript ? SquareTerminal : (ICONS[choice.outputMime.split("/")[0] ?? ""] ?? WorkflowIcon);
  return (
    <Link
      ref={link}
      to="/create"
      search={({ q }) => ({ workflow: choice.slug, ...(q && { q }) })}
      className={styles.entry}
      data-chosen={isChosen || undefined}
    >
      <span className={styles.cover}>
        {choice.coverUrl && !isGone ? (
          <img src={here(choice.coverUrl)} alt="" decoding="async" onError={() => setGone(true)} />
        ) : (
          <Icon aria-hidden strokeWidth={1.5} />
        )}
      </span>
      <span className={styles.entryText}>
        <span className={styles.entryName} dir="auto">
          {breakable(choice.name)}
        </span>
        {unmet ? (
          <span className={styles.entryMissing} title={unmet.text}>
            <TriangleAlert aria-hidden />
            {texts.missing(unmet.items)}
          </span>
        ) : (
          <span className={styles.entryAbout}>{describeChoice(choice)}</span>
        )}
      </span>
    </Link>
  );
}
