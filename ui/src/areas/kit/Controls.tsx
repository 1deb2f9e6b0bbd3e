import { Dices, Download, Lock, Pause, Star, Trash2 } from "lucide-react";
import { useState } from "react";
import type { Whole } from "@/api/json";
import { Button, Checkbox, Field, IconButton, NumberField, Select, Switch, TextArea, TextField, toast } from "@/kit";
import { Combobox } from "@/kit/Combobox";
import { CopyField } from "@/kit/CopyField";
import { DropZone } from "@/kit/DropZone";
import { Segmented } from "@/kit/Segmented";
import { common } from "@/texts/common";
import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";
import { Section } from "./Section";

const { sections } = texts;
const SAMPLERS = ["euler", "euler_ancestral", "dpmpp_2m", "dpmpp_2m_sde", "uni_pc"].map((value) => ({ value }));
const MODELS = Array.from({ length: 40 }, (_, at) => ({
  value: `wan2.2_i2v_${at % 2 ? "low" : "high"}_noise_14B_${at}.safetensors`,
}));
const LARGEST_SEED = 18446744073709551615n;

export function Controls() {
  const { fields } = texts;
  const [steps, setSteps] = useState<Whole | null>(20);
  const [seed, setSeed] = useState<Whole | null>(LARGEST_SEED);
  const [sampler, setSampler] = useState("euler");
  const [model, setModel] = useState<string | null>(null);
  const [isOn, setOn] = useState(true);
  return (
    <>
      <Section name={sections.buttons}>
        {(["medium", "small", "large"] as const).map((size) => (
          <div key={size} className={styles.row}>
            <Button look="primary" size={size}>
              {texts.words[0]}
            </Button>
            <Button icon={Pause} size={size}>
              {texts.words[1]}
            </Button>
            <Button look="quiet" icon={Dices} size={size}>
              {texts.words[2]}
            </Button>
            <Button look="danger" icon={Trash2} size={size}>
              {texts.words[3]}
            </Button>
            <Button isBusy size={size}>
              {texts.words[4]}
            </Button>
            <Button disabled size={size}>
              {texts.words[5]}
            </Button>
            {size !== "large" && (
              <>
                <IconButton icon={Star} name={common.more} keys="s" size={size} />
                <IconButton icon={Lock} name={common.close} isPressed size={size} />
                <IconButton icon={Download} name={common.copy} disabled size={size} />
              </>
            )}
          </div>
        ))}
      </Section>
      <Section name={sections.fields}>
        <div className={styles.columns}>
          <Field name={fields.prompt} aside={fields.hint}>
            <TextArea defaultValue={texts.prompt} />
          </Field>
          <Field name={fields.negative}>
            <TextArea placeholder={texts.prompt} />
          </Field>
          <Field name={fields.name} problem={fields.problem} isRequired>
            <TextField defaultValue={texts.batches[0]} />
          </Field>
          <Field name={fields.steps} hint={fields.hint}>
            <NumberField value={steps} onChange={setSteps} minimum={1} maximum={150} isWhole />
          </Field>
          <Field name={fields.seed}>
            <NumberField value={seed} onChange={setSeed} minimum={0} maximum={LARGEST_SEED} isWhole />
          </Field>
          <Field name={fields.sampler}>
            <Select value={sampler} choices={SAMPLERS} onChange={setSampler} />
          </Field>
          <Field name={fields.model}>
            <Combobox value={model} choices={MODELS} onChange={setModel} />
          </Field>
          <Field name={common.theme.name}>
            <TextField disabled value={common.theme.system} />
          </Field>
          <Switch name={fields.switch} hint={fields.switchHint} isOn={isOn} onChange={setOn} />
          <Segmented
            name={common.theme.name}
            value={isOn ? "on" : "off"}
            choices={[
              { value: "on", name: common.theme.dark },
              { value: "off", name: common.theme.light },
            ]}
            onChange={(next) => setOn(next === "on")}
          />
          <div className={styles.row}>
            <Checkbox name={fields.name} isOn={isOn} onChange={setOn} />
            <Checkbox name={fields.seed} isOn="some" onChange={setOn} />
            <Checkbox name={fields.steps} isOn={false} onChange={setOn} isDisabled />
          </div>
          <DropZone title={texts.drop} hint={texts.dropHint} onFiles={(files) => toast(String(files.length))} />
          <CopyField name={texts.secret} value={texts.secret} />
        </div>
      </Section>
    </>
  );
}
