import { useQuery } from "@tanstack/react-query";
import { Command } from "cmdk";
import { Box, Check } from "lucide-react";
import { useState } from "react";
import { sentence } from "@/api/problem";
import { Dialog } from "@/kit";
import { breakable } from "@/kit/breakable";
import combobox from "@/kit/Combobox.module.css";
import { common, size } from "@/texts/common";
import { create as texts } from "@/texts/create";
import type { Form } from "./form";
import type { Input } from "./inputs";
import { baseName, groupByFolder, models, pictureUrl, recentModels } from "./models";
import styles from "./models.module.css";

interface ModelDialogProps {
  form: Form;
  input: Input;
  value: string;
  onChoose: (name: string) => void;
  onClose: () => void;
}

/** Models with their pictures: recently used ones first, then by folder. */
export function ModelDialog({ form, input, value, onChoose, onClose }: ModelDialogProps) {
  const { choice } = form;
  const { data, error } = useQuery(models(choice, input.key));
  const known = new Map(data?.items.map((each) => [each.name, each]));
  // the choices are shown at once, and if no ComfyUI answers
  const names = input.type === "choice" ? input.choices.map(String) : [...known.keys()];
  const recent = recentModels(choice.slug, input.key, names);
  const item = (name: string, group: string) => {
    const bytes = known.get(name)?.size_bytes;
    return (
      <Command.Item
        key={`${group}:${name}`}
        value={`${group}:${name}`}
        keywords={[name]}
        className={styles.model}
        title={name}
        aria-label={name}
        onSelect={() => onChoose(name)}
      >
        <ModelPicture src={known.has(name) ? pictureUrl(choice, input.key, name) : null} />
        <span className={styles.name}>
          <span dir="auto">{breakable(baseName(name))}</span>
          {bytes && <span className={styles.size}>{size(bytes)}</span>}
        </span>
        {name === value && <Check aria-label={texts.models.chosen} />}
      </Command.Item>
    );
  };
  return (
    <Dialog isOpen isWide onClose={onClose} title={texts.models.title(input.label)}>
      <Command loop label={texts.models.search} className={styles.browser} filter={matches}>
        <Command.Input className={combobox.input} placeholder={texts.models.search} />
        {error && <p role="alert">{sentence(error)}</p>}
        {data && !data.items.length && <p className={styles.note}>{texts.models.noPictures}</p>}
        <Command.List className={styles.list}>
          <Command.Empty className={combobox.empty}>{common.nothingFound}</Command.Empty>
          {recent.length > 0 && (
            <Command.Group heading={texts.models.recent} className={styles.group}>
              {recent.map((name) => item(name, "recent"))}
            </Command.Group>
          )}
          {groupByFolder(names).map(({ folder, names: found }) => (
            <Command.Group
              key={folder}
              heading={folder || (recent.length ? texts.models.all : undefined)}
              className={styles.group}
            >
              {found.map((name) => item(name, "all"))}
            </Command.Group>
          ))}
        </Command.List>
      </Command>
    </Dialog>
  );
}

/** Every word of the search must be in the name. The names keep their order. */
export const matches = (_value: string, search: string, keywords?: readonly string[]): number => {
  const name = (keywords?.[0] ?? "").toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => name.includes(word))
    ? 1
    : 0;
};

function ModelPicture({ src }: { src: string | null }) {
  const [isBroken, setBroken] = useState(false);
  return (
    <span className={styles.picture}>
      {src && !isBroken ? (
        <img src={src} alt="" loading="lazy" decoding="async" onError={() => setBroken(true)} />
      ) : (
        <Box aria-hidden />
      )}
    </span>
  );
}
