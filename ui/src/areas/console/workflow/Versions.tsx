import { useMutation, useQuery } from "@tanstack/react-query";
import { Download, Undo2 } from "lucide-react";
import { Button, toastProblem } from "@/kit";
import { workflow as all } from "@/texts/console-workflows";
import { type Version, versionOf, versions, type Workflow } from "../catalogue/queries";
import { QueryResult, RelativeTime, Section, State, sheet } from "../shared/sheet";
import { download } from "./download-json";

const texts = all.versions;

interface VersionsProps {
  slug: string;
  /** Loads a version into the editor. */
  onBringBack: (version: Partial<Workflow>) => void;
}

export function Versions({ slug, onBringBack }: VersionsProps) {
  const found = useQuery(versions(slug));
  const fetch = useMutation({
    mutationFn: ({ number }: { number: number; use: "keep" | "bring back" }) => versionOf(slug, number),
    onSuccess: (version, { use }) => {
      if (use === "keep") return download(`${slug}-${version.number}.json`, version.graph);
      const { graph, properties, output_node_id, output_extension, output_mime_type } = version;
      onBringBack({ graph, properties, output_node_id, output_extension, output_mime_type });
    },
    onError: toastProblem,
  });
  return (
    <Section title={texts.title} about={texts.about}>
      <QueryResult query={found}>
        {(items) =>
          items.length ? (
            <ul className={sheet.list}>
              {items.map((each, place) => (
                <li key={each.number}>
                  <div className={sheet.line}>
                    <strong>{texts.number(each.number)}</strong>
                    {place === 0 && <State tone="good">{texts.current}</State>}
                    <span className={`${sheet.grow} ${sheet.faint}`}>
                      {texts.made(shownIn(each))} · <RelativeTime at={each.created_at} />
                    </span>
                    <Button
                      size="small"
                      look="quiet"
                      icon={Download}
                      aria-label={texts.downloadOf(each.number)}
                      onClick={() => fetch.mutate({ number: each.number, use: "keep" })}
                    >
                      {texts.download}
                    </Button>
                    {place > 0 && (
                      <Button
                        size="small"
                        icon={Undo2}
                        aria-label={texts.restoreOf(each.number)}
                        onClick={() => fetch.mutate({ number: each.number, use: "bring back" })}
                      >
                        {texts.restore}
                      </Button>
                    )}
                  </div>
                </li>
              ))}
            </ul>
          ) : (
            <p className={sheet.muted}>{texts.none}</p>
          )
        }
      </QueryResult>
    </Section>
  );
}

const shownIn = (version: Version): number =>
  version.properties.filter((each) => each.user_configurable || each.is_primary_input).length;
