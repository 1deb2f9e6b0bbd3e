import type { components } from "@/api/schema";
import { FolderField } from "@/folders/FolderField";
import { Button, Checkbox, Field, NumberField, TextArea, TextField } from "@/kit";
import { settings as texts } from "@/texts/settings";
import styles from "./SettingsSheet.module.css";

export type DeskSetting = components["schemas"]["DeskSetting"];
export type SettingValue = string | number | readonly string[] | null;

interface SettingFieldProps {
  setting: DeskSetting;
  value: SettingValue;
  problem: string | null;
  onChange: (value: SettingValue) => void;
}

const asText = (value: unknown): string => (Array.isArray(value) ? value.join(", ") : String(value ?? ""));
const shown = (value: unknown): string => asText(value) || texts.nothing;
const byDefault = ({ default: value }: DeskSetting): string =>
  asText(value) ? texts.byDefault(asText(value)) : texts.nothing;

/** A setting with its source. Values from the environment or the command line cannot be changed here. */
export function SettingField({ setting, value, problem, onChange }: SettingFieldProps) {
  const isFixed = setting.source === "environment" || setting.source === "command line";
  const source = texts.sources[setting.source]?.(setting.variable) ?? setting.source;
  const notes = [
    setting.description,
    ...(setting.warning ? [setting.warning] : []),
    ...(setting.kind === "list" ? [texts.onePerLine] : []),
    ...(setting.needs_restart ? [texts.needsRestart] : setting.is_live ? [] : [texts.afterRestart]),
  ];
  return (
    <Field
      name={setting.title}
      aside={<span title={byDefault(setting)}>{source}</span>}
      hint={notes.join(" ")}
      problem={problem}
    >
      <Control setting={setting} value={value} isFixed={isFixed} onChange={onChange} />
    </Field>
  );
}

interface ControlProps {
  setting: DeskSetting;
  value: SettingValue;
  isFixed: boolean;
  onChange: (value: SettingValue) => void;
}

function Control({ setting, value, isFixed, onChange }: ControlProps) {
  const lines = Array.isArray(value) ? (value as readonly string[]) : [];
  switch (setting.kind) {
    case "number":
      return (
        <NumberField
          value={typeof value === "number" ? value : null}
          minimum={setting.minimum}
          maximum={setting.maximum}
          placeholder={shown(setting.default)}
          isDisabled={isFixed}
          onChange={(next) => onChange(next === null ? null : Number(next))}
        />
      );
    case "choices":
      return (
        <span className={styles.choices}>
          {setting.choices.map((each) => (
            <span key={each} className={styles.choice}>
              <Checkbox
                name={texts.events[each] ?? each}
                isOn={lines.includes(each)}
                isDisabled={isFixed}
                onChange={(isOn) =>
                  onChange(setting.choices.filter((one) => (one === each ? isOn : lines.includes(one))))
                }
              />
              <span aria-hidden>{texts.events[each] ?? each}</span>
            </span>
          ))}
        </span>
      );
    case "folder":
      return (
        <FolderField
          name={setting.title}
          value={typeof value === "string" ? value : ""}
          placeholder={byDefault(setting)}
          isDisabled={isFixed}
          onChange={(next) => onChange(next || null)}
        />
      );
    case "folders":
      return (
        <span className={styles.folders}>
          {lines.map((each) => (
            <span key={each} className={styles.chosen}>
              <span dir="auto">{each}</span>
              <Button
                size="small"
                look="quiet"
                disabled={isFixed}
                onClick={() => onChange(lines.filter((one) => one !== each))}
              >
                {texts.removeFolder}
              </Button>
            </span>
          ))}
          <FolderField
            name={setting.title}
            value=""
            placeholder={texts.addFolder}
            isDisabled={isFixed}
            onChange={(next) => onChange([...lines, next])}
          />
        </span>
      );
    case "list":
      return (
        <TextArea
          value={lines.join("\n")}
          rows={Math.max(2, lines.length)}
          spellCheck={false}
          disabled={isFixed}
          onChange={(event) => onChange(event.target.value.split("\n"))}
        />
      );
    default:
      return (
        <TextField
          value={value === null ? "" : String(value)}
          placeholder={shown(setting.default)}
          spellCheck={false}
          disabled={isFixed}
          onChange={(event) => onChange(event.target.value || null)}
        />
      );
  }
}
