import { create as texts } from "@/texts/create";
import styles from "./CommandPreview.module.css";
import type { Command } from "./command";
import { argumentLines } from "./command";

/** The command, one frame per argument. */
export function CommandPreview({ command, prompts }: { command: Command; prompts: number }) {
  return (
    <section className={styles.command} aria-label={texts.script.command} id="command">
      <h3>{texts.script.command}</h3>
      {command.argv ? (
        <ol aria-label={texts.script.arguments}>
          {argumentLines(command.argv).map((line) => (
            <li key={line.join("\u0000")}>
              {line.map((each, place) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: arguments are identified only by position
                <code key={place}>{each}</code>
              ))}
            </li>
          ))}
        </ol>
      ) : (
        <p className={styles.commandNote} role="status">
          {command.problem ?? texts.script.waiting}
        </p>
      )}
      {prompts > 1 && <p className={styles.commandNote}>{texts.script.more(prompts - 1)}</p>}
      <p className={styles.commandNote}>{texts.script.about}</p>
    </section>
  );
}
