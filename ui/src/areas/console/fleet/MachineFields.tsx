import { Plus, Trash2 } from "lucide-react";
import { Button, Field, IconButton, NumberField, Select, TextArea, TextField } from "@/kit";
import { fleet as words } from "@/texts/console-fleets";
import { Panel } from "../shared/panels";
import styles from "./fleet.module.css";
import { type InstanceType, type MachinesDraft, PROVIDERS } from "./machines-draft";

const { machines: texts } = words;

interface MachineFieldsProps {
  draft: MachinesDraft;
  problemOf: (name: string) => string | null;
  onChange: (next: Partial<MachinesDraft>) => void;
}

/** The provider, types and contents of a fleet's machines. */
export function MachineFields({ draft, problemOf, onChange }: MachineFieldsProps) {
  const { instance_types: types } = draft;
  const providers = [...new Set([...PROVIDERS, draft.provider])];
  const changeType = (index: number, next: Partial<InstanceType>) =>
    onChange({ instance_types: types.map((each, at) => (at === index ? { ...each, ...next } : each)) });
  return (
    <>
      <Panel title={texts.title}>
        <div className={styles.fields}>
          <Field
            name={texts.provider}
            hint={texts.providerHints[draft.provider] ?? null}
            problem={problemOf("provider")}
          >
            <Select
              value={draft.provider}
              choices={providers.map((value) => ({ value, name: texts.providers[value] ?? value }))}
              onChange={(provider) => onChange({ provider })}
            />
          </Field>
          <Field name={texts.slots} hint={texts.slotsHint} problem={problemOf("slots")}>
            <NumberField
              isWhole
              minimum={1}
              maximum={64}
              value={draft.slots}
              onChange={(slots) => onChange({ slots: slots === null ? null : Number(slots) })}
            />
          </Field>
          <Field name={texts.image} hint={texts.imageHint} problem={problemOf("image")}>
            <TextField value={draft.image} onChange={(event) => onChange({ image: event.target.value })} />
          </Field>
        </div>
      </Panel>
      <Panel
        title={texts.types}
        aside={
          <Button
            size="small"
            icon={Plus}
            onClick={() => onChange({ instance_types: [...types, { name: "", price_per_hour: 0, speed: 1 }] })}
          >
            {texts.addType}
          </Button>
        }
      >
        <p className={styles.quiet}>{texts.typesAbout}</p>
        {types.map((each, index) => (
          <fieldset
            // biome-ignore lint/suspicious/noArrayIndexKey: types are identified by position, because their names are edited
            key={index}
            className={styles.type}
            aria-label={texts.type(index + 1)}
          >
            <Field name={texts.typeName} problem={problemOf(`instance_types.${index}.name`)}>
              <TextField value={each.name} onChange={(event) => changeType(index, { name: event.target.value })} />
            </Field>
            <Field name={texts.price} problem={problemOf(`instance_types.${index}.price_per_hour`)}>
              <NumberField
                minimum={0}
                value={each.price_per_hour}
                onChange={(value) => changeType(index, { price_per_hour: Number(value ?? 0) })}
              />
            </Field>
            <Field name={texts.speed} problem={problemOf(`instance_types.${index}.speed`)}>
              <NumberField
                minimum={0.001}
                value={each.speed}
                onChange={(value) => changeType(index, { speed: Number(value ?? 1) })}
              />
            </Field>
            <IconButton
              icon={Trash2}
              name={texts.removeType}
              onClick={() => onChange({ instance_types: types.filter((_, at) => at !== index) })}
            />
          </fieldset>
        ))}
      </Panel>
      <Panel title={texts.more}>
        <div className={styles.fields}>
          <Field name={texts.options} hint={texts.optionsHint} problem={problemOf("options")}>
            <TextArea
              rows={4}
              spellCheck={false}
              placeholder={texts.optionsExample[draft.provider] ?? "{}"}
              value={draft.options}
              onChange={(event) => onChange({ options: event.target.value })}
            />
          </Field>
          <Field name={texts.nodes} hint={texts.bundleHint} problem={problemOf("bundle.node_types")}>
            <TextArea
              rows={4}
              spellCheck={false}
              value={draft.nodes}
              onChange={(event) => onChange({ nodes: event.target.value })}
            />
          </Field>
          <Field name={texts.models} hint={texts.bundleHint} problem={problemOf("bundle.models")}>
            <TextArea
              rows={4}
              spellCheck={false}
              value={draft.models}
              onChange={(event) => onChange({ models: event.target.value })}
            />
          </Field>
        </div>
      </Panel>
    </>
  );
}
