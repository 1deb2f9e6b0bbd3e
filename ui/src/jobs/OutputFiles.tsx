import { here } from "@/api/client";
import type { AboutJob } from "@/api/types";
import { Button, Heading } from "@/kit";
import { breakable } from "@/kit/breakable";
import { copyText } from "@/kit/clipboard";
import { kindOf } from "@/kit/Media";
import { size } from "@/texts/common";
import { job as texts } from "@/texts/job";
import styles from "./OutputFiles.module.css";
import section from "./section.module.css";

export function OutputFiles({ about }: { about: AboutJob }) {
  const { files } = about;
  if (!files.length) return null;
  const folderOf = (path: string, name: string) => path.slice(0, -name.length - 1);
  const folders = [...new Set(files.map((each) => folderOf(each.path, each.name)))];
  return (
    <section className={section.section}>
      <Heading>{texts.files}</Heading>
      {folders.length === 1 && <p className={section.hint}>{texts.inFolder(folders[0] ?? "")}</p>}
      <ul className={styles.files}>
        {files.map((each) => (
          <li key={each.path}>
            {each.url ? (
              <a href={here(each.url)} download={each.name}>
                {breakable(folders.length > 1 ? each.path : each.name)}
              </a>
            ) : (
              <span>{breakable(folders.length > 1 ? each.path : each.name)}</span>
            )}
            <span className={section.hint}>{each.size === null ? texts.fileGone : size(each.size)}</span>
            {each.url && kindOf(each.mime_type) === "text" && (
              <Button size="small" onClick={async () => copyText(await (await fetch(here(each.url as string))).text())}>
                {texts.copyText}
              </Button>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}
