import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { put } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, ErrorCard, toast } from "@/kit";
import { fleet as words } from "@/texts/console-fleets";
import { MappingField, MissingCard } from "../fleets/Mapping";
import type { Fleet, Stage } from "../queries/fleets";
import { consoleKeys } from "../shared/live";
import { Panel } from "../shared/panels";
import { useUnsavedChanges } from "../shared/use-unsaved-changes";
import { useVersion } from "../shared/use-version";
import styles from "./fleet.module.css";

const { mapping: texts } = words;

const listOf = (joined: string): readonly string[] => (joined ? joined.split(",") : []);
const isSameChoice = (one: readonly string[], other: readonly string[]): boolean =>
  one.length === other.length && one.every((each) => other.includes(each));

export function WorkflowsForm({ fleet }: { fleet: Fleet }) {
  const client = useQueryClient();
  const [chosen, setChosen] = useState<readonly string[]>(fleet.workflow_slugs);
  const saved = fleet.workflow_slugs.join();
  const shown = useRef(saved);
  // show changes from elsewhere, unless the user is editing
  useEffect(() => {
    const before = shown.current;
    shown.current = saved;
    setChosen((now) => (isSameChoice(now, listOf(before)) ? listOf(saved) : now));
  }, [saved]);
  const versioned = useVersion(fleet, !isSameChoice(chosen, fleet.workflow_slugs));
  const save = useMutation({
    mutationFn: (force: boolean) =>
      versioned(
        (version) =>
          put("/api/admin/fleets/{stage}/{slug}/workflows", {
            path: { stage: fleet.stage as Stage, slug: fleet.slug },
            body: { workflow_slugs: [...chosen], force },
            version,
          }),
        () => client.refetchQueries({ queryKey: consoleKeys.fleet(fleet.stage, fleet.slug), exact: true }),
      ),
    onSuccess: async ({ data }) => {
      client.setQueryData(consoleKeys.fleet(fleet.stage, fleet.slug), data);
      toast({ text: texts.saved, tone: "good" });
      await client.invalidateQueries({ queryKey: consoleKeys.fleets });
    },
  });
  const added = chosen.filter((each) => !fleet.workflow_slugs.includes(each)).length;
  const removed = fleet.workflow_slugs.filter((each) => !chosen.includes(each)).length;
  const { dialog } = useUnsavedChanges({ isDirty: added + removed > 0, isOfTab: true });
  const missing = save.error instanceof Problem ? save.error.missing : [];
  return (
    <div className={styles.column}>
      <Panel title={texts.title}>
        <p className={styles.quiet}>{texts.about}</p>
        {save.error &&
          (missing.length ? (
            <MissingCard missing={missing} onForce={() => save.mutate(true)} />
          ) : (
            <ErrorCard title={sentence(save.error)} />
          ))}
        <MappingField
          name={texts.chosen}
          chosen={chosen}
          onChange={(next) => {
            save.reset();
            setChosen(next);
          }}
        />
        <div className={styles.actions}>
          <span className={styles.quiet}>{texts.changed(added, removed)}</span>
          <Button
            look="primary"
            isBusy={save.isPending}
            disabled={added + removed === 0}
            onClick={() => save.mutate(false)}
          >
            {texts.save}
          </Button>
        </div>
      </Panel>
      {dialog}
    </div>
  );
}
