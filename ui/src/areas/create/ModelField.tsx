import { useQuery } from "@tanstack/react-query";
import { Check, ChevronsUpDown, FolderSearch, Plus } from "lucide-react";
import { lazy, Suspense, useState } from "react";
import { classes, IconButton, TextField } from "@/kit";
import { useFieldProps } from "@/kit/Field";
import fieldStyles from "@/kit/Field.module.css";
import select from "@/kit/Select.module.css";
import { create as texts } from "@/texts/create";
import type { Form } from "./form";
import { type Input, promptOf } from "./inputs";
import { addWord, hasWord, modelMetadata, rememberModel } from "./models";
import styles from "./models.module.css";
import { isOnePromptPerLine } from "./sweep";
import { textOf } from "./values";

const ModelDialog = lazy(async () => ({ default: (await import("./ModelDialog")).ModelDialog }));

interface ModelFieldProps {
  form: Form;
  input: Input;
  text: string;
}

/** The name of a model, and a dialog to choose another one. */
export function ModelField({ form, input, text }: ModelFieldProps) {
  const [isOpen, setOpen] = useState(false);
  const props = useFieldProps();
  const choose = (name: string) => {
    rememberModel(form.choice.slug, input.key, name);
    form.setText(input, name);
    setOpen(false);
  };
  const open = () => setOpen(true);
  return (
    <>
      {input.type === "choice" ? (
        <button
          type="button"
          {...props}
          role="combobox"
          aria-haspopup="dialog"
          aria-expanded={isOpen}
          aria-controls={undefined}
          title={text}
          className={classes(fieldStyles.control, select.select)}
          onClick={open}
        >
          <span className={classes(!text && select.placeholder)}>{text || texts.models.choose}</span>
          <ChevronsUpDown aria-hidden />
        </button>
      ) : (
        // there are too many models for a list of choices
        <div className={styles.typed}>
          <TextField value={text} spellCheck={false} onChange={(event) => form.setText(input, event.target.value)} />
          <IconButton icon={FolderSearch} name={texts.models.title(input.label)} onClick={open} />
        </div>
      )}
      <TriggerWords form={form} input={input} name={text} />
      {isOpen && (
        <Suspense>
          <ModelDialog form={form} input={input} value={text} onChoose={choose} onClose={() => setOpen(false)} />
        </Suspense>
      )}
    </>
  );
}

// More are shown on demand.
const MAX_SHOWN = 6;

/** Trigger words in the file of a model. A click adds one to the prompt. */
function TriggerWords({ form, input, name }: { form: Form; input: Input; name: string }) {
  const { choice, draft } = form;
  const { data } = useQuery(modelMetadata(choice, input.key, name));
  const [showsAll, setShowsAll] = useState(false);
  const words = data?.trigger_words ?? [];
  if (!words.length) return null;
  const prompt = promptOf(choice);
  const text = prompt ? textOf(prompt, choice, draft.texts) : "";
  const shown = showsAll ? words : words.slice(0, MAX_SHOWN);
  return (
    <fieldset className={styles.words} aria-label={texts.models.words(data?.title ?? name)}>
      <span>{texts.models.wordsShort}</span>
      {shown.map((word) => {
        const isIn = hasWord(text, word);
        return prompt ? (
          <button
            key={word}
            type="button"
            className={styles.word}
            disabled={isIn}
            aria-label={isIn ? texts.models.isInPrompt(word) : texts.models.addWord(word)}
            title={isIn ? texts.models.isInPrompt(word) : texts.models.addWord(word)}
            onClick={() => form.setText(prompt, addWord(text, word, isOnePromptPerLine(choice, draft)))}
          >
            {isIn ? <Check aria-hidden /> : <Plus aria-hidden />}
            <span>{word}</span>
          </button>
        ) : (
          <span key={word} className={styles.word}>
            {word}
          </span>
        );
      })}
      {words.length > shown.length && (
        <button type="button" className={styles.word} onClick={() => setShowsAll(true)}>
          {texts.form.more(words.length - shown.length)}
        </button>
      )}
    </fieldset>
  );
}
