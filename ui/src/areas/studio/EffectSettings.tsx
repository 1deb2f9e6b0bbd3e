import { Collapsible } from "@/areas/create/Collapsible";
import { FileInputs } from "@/areas/create/FileInputs";
import type { Form } from "@/areas/create/form";
import { InputField } from "@/areas/create/InputField";
import { type Input, isFile, primaryOf, sectionsOf } from "@/areas/create/inputs";
import { isChanged } from "@/areas/create/values";
import { Heading } from "@/kit";
import { studio } from "@/texts/studio";
import styles from "./EffectPage.module.css";
import studioStyles from "./studio.module.css";

const texts = studio.effect;

export function EffectSettings({ form, isDisabled }: { form: Form; isDisabled: boolean }) {
  const { choice, draft } = form;
  const primary = primaryOf(choice);
  const sections = sectionsOf(choice);
  const rows = sections.rows.map((row) => row.filter((each) => each !== primary)).filter((row) => row.length > 0);
  const files = sections.files.filter((each) => each !== primary);
  // groups are named after nodes, which customers do not know
  const more = sections.groups.flatMap(({ inputs }) => inputs);
  const showFile = (each: Input) => (
    <FileInputs
      key={each.key}
      form={form}
      input={each}
      root={null}
      folderProblem={null}
      onSample={null}
      isDisabled={isDisabled}
    />
  );
  if (choice.properties.every((each) => each === primary)) return null;
  return (
    <section className={studioStyles.part} aria-label={texts.settings}>
      <Heading>{texts.settings}</Heading>
      <form className={styles.form} onSubmit={(event) => event.preventDefault()} noValidate>
        {rows.map((row) =>
          row[0] && isFile(row[0]) ? (
            row.map(showFile)
          ) : (
            <div key={row[0]?.key} className={styles.fields}>
              {row.map((each) => (
                <InputField key={each.key} form={form} input={each} />
              ))}
            </div>
          ),
        )}
        {files.map(showFile)}
        {sections.wide.map((each) => (
          <InputField key={each.key} form={form} input={each} />
        ))}
        {sections.main.length > 0 && (
          <div className={styles.fields}>
            {sections.main.map((each) => (
              <InputField key={each.key} form={form} input={each} />
            ))}
          </div>
        )}
        {more.length > 0 && (
          <Collapsible
            className={styles.fold}
            isNeeded={more.some((each) => each.key in form.problems || isChanged(each, choice, draft.texts))}
          >
            <summary>{texts.more}</summary>
            <div className={styles.fields}>
              {more.map((each) => (
                <InputField key={each.key} form={form} input={each} />
              ))}
            </div>
          </Collapsible>
        )}
      </form>
    </section>
  );
}
