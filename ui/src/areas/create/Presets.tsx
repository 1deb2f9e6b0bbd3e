import { useQuery, useQueryClient } from "@tanstack/react-query";
import { BookmarkPlus, X } from "lucide-react";
import { useState } from "react";
import { post, remove } from "@/api/client";
import { sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import type { Preset } from "@/api/types";
import { Button, Dialog, Field, TextField, toast, toastProblem } from "@/kit";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import { changeDraft, draftOf } from "./drafts";
import type { Form } from "./form";
import styles from "./Presets.module.css";
import { presetKey, presetTexts } from "./preset-values";
import { presets } from "./queries";
import { presetValues } from "./submission";

export function applyPreset(form: Form, preset: Preset): void {
  const { texts: next, ignored } = presetTexts(preset.values, form.choice);
  const { slug } = form.choice;
  const before = draftOf(slug);
  form.setTexts(next);
  const more = ignored.length ? ` ${texts.presets.ignored(ignored.join(", "))}` : "";
  const undo = { name: texts.form.undo, run: () => changeDraft(slug, () => before) };
  toast({ text: texts.presets.applied(preset.name) + more, action: undo });
}

export function Presets({ form }: { form: Form }) {
  const client = useQueryClient();
  const { isGuest } = useSession();
  const { data: all = [] } = useQuery(presets);
  const [isNaming, setNaming] = useState(false);
  const [going, setGoing] = useState<Preset | null>(null);
  const fitting = all.filter((each) => form.choice.properties.some((input) => presetKey(each.values, input) !== null));
  const forget = async (preset: Preset) => {
    setGoing(null);
    try {
      await remove("/api/presets/{preset_id}", { path: { preset_id: preset.id } });
      toast({ text: texts.presets.deleted(preset.name), tone: "good" });
    } catch (thrown) {
      toastProblem(thrown);
    }
    await client.invalidateQueries({ queryKey: keys.presets });
  };
  return (
    <section className={styles.presets} aria-label={texts.presets.choose}>
      <span className={styles.presetsName}>{texts.presets.choose}</span>
      {fitting.length === 0 && <span className={styles.presetsNone}>{texts.presets.none}</span>}
      {fitting.map((each) => (
        <span key={each.id} className={styles.preset}>
          <button type="button" onClick={() => applyPreset(form, each)}>
            {each.name}
          </button>
          {!isGuest && (
            <button type="button" aria-label={texts.presets.delete(each.name)} onClick={() => setGoing(each)}>
              <X aria-hidden />
            </button>
          )}
        </span>
      ))}
      {!isGuest && (
        <Button look="quiet" size="small" icon={BookmarkPlus} onClick={() => setNaming(true)}>
          {texts.presets.save}
        </Button>
      )}
      <SavePresetDialog isOpen={isNaming} onClose={() => setNaming(false)} form={form} />
      <Dialog
        isOpen={going !== null}
        onClose={() => setGoing(null)}
        title={texts.presets.ask(going?.name ?? "")}
        about={texts.presets.askAbout}
        actions={
          <>
            <Button onClick={() => setGoing(null)}>{common.cancel}</Button>
            <Button look="danger" onClick={() => going && forget(going)}>
              {texts.presets.deleteIt}
            </Button>
          </>
        }
      />
    </section>
  );
}

function SavePresetDialog({ isOpen, onClose, form }: { isOpen: boolean; onClose: () => void; form: Form }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const close = () => {
    setProblem(null);
    setName("");
    onClose();
  };
  const save = async () => {
    if (!name.trim()) return setProblem(texts.problems.required);
    const values = presetValues(form.choice, form.draft);
    if (!Object.keys(values).length) return setProblem(texts.presets.nothing);
    try {
      await post("/api/presets", { body: { name: name.trim(), values } });
      await client.invalidateQueries({ queryKey: keys.presets });
      toast({ text: texts.presets.saved(name.trim()), tone: "good" });
      close();
    } catch (thrown) {
      setProblem(sentence(thrown));
    }
  };
  return (
    <Dialog
      isOpen={isOpen}
      onClose={close}
      title={texts.presets.saveTitle}
      about={texts.presets.saveAbout}
      actions={
        <>
          <Button onClick={close}>{common.cancel}</Button>
          <Button look="primary" disabled={!name.trim()} onClick={save}>
            {texts.presets.saveIt}
          </Button>
        </>
      }
    >
      <Field name={texts.presets.nameField} problem={problem}>
        <TextField
          value={name}
          maxLength={200}
          onChange={(event) => setName(event.target.value)}
          onKeyDown={(event) => event.key === "Enter" && !event.ctrlKey && !event.metaKey && void save()}
        />
      </Field>
    </Dialog>
  );
}
