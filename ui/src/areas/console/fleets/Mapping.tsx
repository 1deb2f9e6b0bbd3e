import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Missing } from "@/api/problem";
import { Button, Checkbox, ErrorCard, Skeleton, TextField } from "@/kit";
import { fleet as words } from "@/texts/console-fleets";
import { workflowNames } from "../queries/workflow-names";
import { listNames } from "../workers/rules";
import styles from "./fleets.module.css";

const { mapping: texts } = words;
const ENOUGH_TO_SEARCH = 8;

interface MappingFieldProps {
  name: string;
  chosen: readonly string[];
  onChange: (chosen: readonly string[]) => void;
}

export function MappingField({ name, chosen, onChange }: MappingFieldProps) {
  const { data } = useQuery(workflowNames);
  const [q, setQ] = useState("");
  if (!data) return <Skeleton height={80} />;
  const found = data.filter((each) => `${each.slug} ${each.name}`.toLowerCase().includes(q.toLowerCase()));
  return (
    <fieldset className={styles.mapping}>
      <legend>
        {name} <span>{texts.count(chosen.length)}</span>
      </legend>
      {data.length > ENOUGH_TO_SEARCH && (
        <TextField
          type="search"
          aria-label={texts.search}
          placeholder={texts.search}
          value={q}
          onChange={(event) => setQ(event.target.value)}
        />
      )}
      {data.length === 0 && <p>{texts.none}</p>}
      <ul>
        {found.map((each) => (
          <li key={each.slug}>
            <Checkbox
              isOn={chosen.includes(each.slug)}
              name={each.name || each.slug}
              onChange={(isOn) =>
                onChange(isOn ? [...chosen, each.slug] : chosen.filter((other) => other !== each.slug))
              }
            />
            <span aria-hidden>
              {each.name || each.slug}
              {each.name && each.name !== each.slug && <small>{each.slug}</small>}
            </span>
          </li>
        ))}
      </ul>
    </fieldset>
  );
}

/** Missing requirements of the chosen workflows, with a way to assign them anyway. */
export function MissingCard({ missing, onForce }: { missing: readonly Missing[]; onForce: () => void }) {
  const names = listNames(
    missing.map((each) => each.name),
    6,
  );
  return (
    <ErrorCard
      tone="warn"
      title={texts.missing}
      actions={
        <Button size="small" onClick={onForce}>
          {texts.force}
        </Button>
      }
    >
      {texts.missingAbout(names)}
    </ErrorCard>
  );
}
