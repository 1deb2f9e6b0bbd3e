import { Field, NumberField, Select, Switch, TextField } from "@/kit";
import { workflow as all } from "@/texts/console-workflows";
import { outputNodes } from "../catalogue/graph";
import type { Workflow } from "../catalogue/queries";
import { Section, sheet } from "../shared/sheet";

const texts = all.settings;
const MICROS = 1_000_000;
const ANY = "any";

interface SettingsProps {
  workflow: Workflow;
  onChange: (part: Partial<Workflow>) => void;
  /** Server errors by field. */
  problems: Readonly<Record<string, string>>;
}

export function Settings({ workflow, onChange, problems }: SettingsProps) {
  const { graph } = workflow;
  return (
    <>
      <Section title={texts.title}>
        <div className={sheet.fields}>
          <Field name={texts.name} problem={problems.name}>
            <TextField
              maxLength={200}
              value={workflow.name}
              onChange={(event) => onChange({ name: event.target.value })}
            />
          </Field>
          <Field name={texts.slug} hint={texts.slugHint}>
            <TextField value={workflow.slug} readOnly />
          </Field>
        </div>
        <Switch
          name={texts.active}
          hint={texts.activeHint}
          isOn={workflow.is_active}
          onChange={(is_active) => onChange({ is_active })}
        />
      </Section>
      <Section title={texts.output}>
        <div className={sheet.fields}>
          <Field name={texts.outputNode} problem={problems.output_node_id}>
            <Select
              value={workflow.output_node_id ?? ANY}
              choices={[
                { value: ANY, name: texts.anyNode },
                ...outputNodes(graph).map(({ id, name }) => ({ value: id, name })),
              ]}
              onChange={(next) => onChange({ output_node_id: next === ANY ? null : next })}
            />
          </Field>
          <Field name={texts.extension} problem={problems.output_extension}>
            <TextField
              value={workflow.output_extension}
              spellCheck={false}
              onChange={(event) => onChange({ output_extension: event.target.value })}
            />
          </Field>
          <Field name={texts.mime} problem={problems.output_mime_type}>
            <TextField
              value={workflow.output_mime_type}
              spellCheck={false}
              onChange={(event) => onChange({ output_mime_type: event.target.value })}
            />
          </Field>
        </div>
      </Section>
      <Section title={texts.prices} about={texts.pricesAbout}>
        <div className={sheet.fields}>
          <Field name={texts.provider} problem={problems.provider}>
            <Select
              value={workflow.provider}
              choices={Object.entries(texts.providers).map(([value, name]) => ({ value, name }))}
              onChange={(provider) => onChange({ provider })}
            />
          </Field>
          <Price
            name={texts.selfHosted}
            micros={workflow.self_hosted_micros_per_second}
            problem={problems.self_hosted_micros_per_second}
            onChange={(next) => onChange({ self_hosted_micros_per_second: next })}
          />
          <Price
            name={texts.cloud}
            micros={workflow.cloud_micros_per_second}
            problem={problems.cloud_micros_per_second}
            onChange={(next) => onChange({ cloud_micros_per_second: next })}
          />
          <Price
            name={texts.burst}
            micros={workflow.burst_micros_per_hour}
            problem={problems.burst_micros_per_hour}
            onChange={(next) => onChange({ burst_micros_per_hour: next })}
          />
        </div>
      </Section>
    </>
  );
}

interface PriceProps {
  name: string;
  micros: number | null | undefined;
  problem: string | undefined;
  onChange: (micros: number | null) => void;
}

/** Shown in the currency, stored in millionths. */
const Price = ({ name, micros, problem, onChange }: PriceProps) => (
  <Field name={name} problem={problem}>
    <NumberField
      minimum={0}
      step={0.0001}
      placeholder={texts.unset}
      value={micros === null || micros === undefined ? null : micros / MICROS}
      onChange={(value) => onChange(value === null ? null : Math.round(Number(value) * MICROS))}
    />
  </Field>
);
