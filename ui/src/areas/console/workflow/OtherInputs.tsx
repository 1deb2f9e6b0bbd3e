import { ChevronDown, Plus } from "lucide-react";
import { useState } from "react";
import { Button, TextField } from "@/kit";
import { workflow as all } from "@/texts/console-workflows";
import { type FormDefinition, fixedInputs, humanize } from "../catalogue/builder";
import { sheet } from "../shared/sheet";
import styles from "./workflow.module.css";

const texts = all.builder;

const MAX_SHOWN = 100;

export function OtherInputs({
  built,
  onOffer,
}: {
  built: FormDefinition;
  onOffer: (nodeId: string, name: string) => void;
}) {
  const [search, setSearch] = useState("");
  const inputs = fixedInputs(built);
  if (!inputs.length) return null;
  const wanted = search.toLowerCase();
  const found = inputs.filter((each) => `${each.node} ${each.name} ${each.value}`.toLowerCase().includes(wanted));
  return (
    <details className={styles.fold}>
      <summary>
        <ChevronDown aria-hidden />
        {texts.graph}
        <span>{inputs.length}</span>
      </summary>
      <div className={styles.folded}>
        <p className={sheet.muted}>{texts.graphAbout}</p>
        <TextField
          type="search"
          aria-label={texts.findInput}
          placeholder={texts.findInput}
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
        <ul className={styles.inputs} aria-label={texts.graph}>
          {found.slice(0, MAX_SHOWN).map((each) => (
            <li key={`${each.nodeId} ${each.name}`}>
              <span>
                {humanize(each.name)}
                <small>
                  {each.node} · {String(each.value)}
                </small>
              </span>
              <Button
                size="small"
                icon={Plus}
                aria-label={texts.offer(each.name, each.node)}
                onClick={() => onOffer(each.nodeId, each.name)}
              >
                {texts.addField}
              </Button>
            </li>
          ))}
        </ul>
      </div>
    </details>
  );
}
