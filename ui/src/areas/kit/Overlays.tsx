import { useState } from "react";
import { Button, Dialog, Drawer, Field, Menu, TextField, Tooltip, toast } from "@/kit";
import { common } from "@/texts/common";
import { kit as texts } from "@/texts/kit";
import styles from "./kit.module.css";
import { Section } from "./Section";
import { SAMPLE_MENU } from "./sample-menu";

const { sections } = texts;

export function Overlays() {
  const { fields } = texts;
  const [opened, setOpened] = useState<"dialog" | "drawer" | null>(null);
  const close = () => setOpened(null);
  return (
    <Section name={sections.overlays}>
      <div className={styles.row}>
        <Button onClick={() => setOpened("dialog")}>{texts.open.dialog}</Button>
        <Button onClick={() => setOpened("drawer")}>{texts.open.drawer}</Button>
        <Menu items={SAMPLE_MENU} align="start">
          <Button>{texts.open.menu}</Button>
        </Menu>
        <Tooltip text={texts.prompt} keys="g q">
          <Button>{texts.open.tooltip}</Button>
        </Tooltip>
        <Button
          onClick={() => toast({ text: texts.toastGood, tone: "good", action: { name: texts.undo, run: close } })}
        >
          {texts.open.good}
        </Button>
        <Button onClick={() => toast({ text: texts.toastBad, tone: "bad" })}>{texts.open.bad}</Button>
      </div>
      <Dialog
        isOpen={opened === "dialog"}
        onClose={close}
        title={texts.dialog}
        about={texts.dialogAbout}
        actions={
          <>
            <Button onClick={close}>{common.close}</Button>
            <Button look="primary" onClick={close}>
              {texts.words[0]}
            </Button>
          </>
        }
      >
        <Field name={fields.name}>
          <TextField />
        </Field>
      </Dialog>
      <Drawer isOpen={opened === "drawer"} onClose={close} title={texts.drawer}>
        {texts.prompt}
      </Drawer>
    </Section>
  );
}
