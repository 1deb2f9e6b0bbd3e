import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Boxes, ChevronDown, Cuboid, ImageIcon, Info } from "lucide-react";
import { useEffect, useState } from "react";
import { Problem } from "@/api/problem";
import { useSession } from "@/app/session";
import { Button, ErrorCard, Field, Heading, Kbd, Select, TextField } from "@/kit";
import { number } from "@/texts/common";
import { create as texts } from "@/texts/create";
import type { Adding } from "./adding";
import { type Estimate, estimate, missing } from "./asked";
import { countOf, excerpt, type Item, itemsOf, labelOf, listsOf, productOf } from "./combine";
import type { Command } from "./command";
import { linesOf } from "./command";
import styles from "./create.module.css";
import { unsent } from "./drafts";
import { Fold } from "./Fold";
import { type Form, lackingInput, problemsOf } from "./form";
import { Picture } from "./Inputs";
import { type Choice, primaryOf } from "./rules";
import { type DeskBatch, deskBatch, folderProblemIn } from "./submission";

const MOST_SHOWN = 36;
const MOST_ROWS = 8;
const SETTLE_MS = 250;

/** What the server says of it, once the form rests and nothing is wrong with it. */
export function useEstimate(form: Form, isDesk: boolean): { found: Estimate | null; folderProblem: string | null } {
  const { choice, draft } = form;
  const isReady = isDesk && !choice.waiting && !unsent(draft).length && !Object.keys(problemsOf(choice, draft)).length;
  const [asked, setAsked] = useState<DeskBatch | null>(null);
  useEffect(() => {
    if (!isReady) return setAsked(null);
    const timer = setTimeout(() => setAsked(deskBatch(choice, draft)), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [choice, draft, isReady]);
  const { data, error } = useQuery({
    ...estimate(asked ?? { values: {} }),
    enabled: asked !== null,
    placeholderData: keepPreviousData,
  });
  if (asked === null) return { found: null, folderProblem: null };
  const folderProblem = asked.input_subdir !== undefined && error instanceof Problem ? folderProblemIn(error) : null;
  return { found: folderProblem ? null : (data ?? null), folderProblem };
}

interface PlanProps {
  form: Form;
  adding: Adding;
  command: Command;
  found: Estimate | null;
  folderProblem: string | null;
}

/** The right column: what will be made, how long that takes, what stands in its way, and the button. */
export function Plan({ form, adding, command, found, folderProblem }: PlanProps) {
  const { choice, draft } = form;
  const { desk } = useSession();
  const lists = listsOf(choice, draft);
  const files = draft.folder === null ? lists.files.length : (found?.input_count ?? 0);
  const count = draft.folder === null ? countOf(lists) : (found?.jobs ?? countOf(lists, files));
  const product = productOf(lists, primaryOf(choice)?.type ?? "", files);
  const lacking = lackingInput(choice, draft);
  const made = lacking
    ? texts.plan.lacking(lacking.type)
    : folderProblem
      ? texts.plan.noFolder
      : texts.plan.many(count, choice.outputMime);
  const isTrying =
    desk !== null && (desk.trying_out === "everything" || (desk.trying_out === "examples" && choice.kind === "effect"));
  return (
    <aside className={styles.plan} aria-label={texts.plan.title}>
      <Heading>{texts.plan.title}</Heading>
      <div className={styles.summary} aria-live="polite">
        <p className={styles.product}>
          {product && count > 1 && !lacking && !folderProblem ? texts.plan.equals(product, made) : made}
        </p>
        <p className={styles.cost}>{costOf(found, choice.tokens * count)}</p>
      </div>
      {choice.isScript ? (
        <Shown command={command} prompts={lists.prompts.length} />
      ) : (
        <Sheet form={form} count={count} found={found} />
      )}
      {found?.odd.map((each) => (
        <Warning key={each.name} name={each.name} text={each.text} />
      ))}
      {choice.waiting ? (
        <ErrorCard tone="warn" title={texts.form.waiting}>
          {choice.waiting}
        </ErrorCard>
      ) : (
        <MissingCard choice={choice} found={found} adding={adding} />
      )}
      {adding.problem && !adding.missing && <ErrorCard title={adding.problem} />}
      {isTrying && (
        <p className={styles.standIn}>
          <Info aria-hidden />
          <span>
            {texts.plan.standIn}. {texts.plan.standInAdvice}
          </span>
        </p>
      )}
      <Options form={form} root={desk?.output_folder ?? null} />
      <div className={styles.submit}>
        <Submit
          form={form}
          adding={adding}
          command={command}
          count={count}
          isMissing={Boolean(found?.missing)}
          folderProblem={folderProblem}
        />
        <p className={styles.kept}>{texts.plan.kept}</p>
      </div>
    </aside>
  );
}

function costOf(found: Estimate | null, tokens: number): string {
  const { plan } = texts;
  const seconds = found?.expected_seconds ?? null;
  const parts = [
    seconds !== null
      ? plan.about(seconds, found?.fastest_seconds ?? null, found?.slowest_seconds ?? null)
      : found?.workers === 0
        ? plan.noWorker
        : plan.unknownTime,
    seconds !== null && found && plan.atOnce(found.workers),
    found?.done_at && plan.doneBy(found.done_at),
    // where nothing costs anything, nobody thinks of tokens
    (found?.tokens ?? tokens) > 0 && plan.tokens(found?.tokens ?? tokens),
  ];
  return parts.filter(Boolean).join(" · ");
}

/** The combinations, small: each input as often as it is used. */
function Sheet({ form, count, found }: { form: Form; count: number; found: Estimate | null }) {
  const lists = listsOf(form.choice, form.draft);
  if (count < 2) return null;
  if (form.draft.folder === null && !lists.files.length)
    return <Rows items={itemsOf(lists, MOST_ROWS)} count={count} tries={lists.tries} />;
  const names = form.draft.folder !== null ? (found?.inputs ?? []).slice(0, MOST_SHOWN) : null;
  const items = itemsOf(lists, MOST_SHOWN);
  // of a folder files are shown, and else jobs
  const left = names ? (found?.input_count ?? 0) - names.length : count - items.length;
  return (
    <div>
      <ul className={styles.sheet} aria-label={texts.plan.sheet}>
        {names
          ? names.map((name) => (
              <li key={name} className={styles.cell} title={name}>
                <ImageIcon aria-hidden />
                <span>{name}</span>
              </li>
            ))
          : items.map((item) => (
              <li key={item.number} className={styles.cell} title={labelOf(item, lists.tries)}>
                {item.file && <Picture given={item.file} />}
                {lists.tries > 1 && <span className={styles.attempt}>{item.attempt}</span>}
              </li>
            ))}
      </ul>
      {left > 0 && <p className={styles.andMore}>{texts.plan.andMore(left)}</p>}
    </div>
  );
}

/** The same without pictures: by their words. */
function Rows({ items, count, tries }: { items: readonly Item[]; count: number; tries: number }) {
  return (
    <div>
      <ol className={styles.rows} aria-label={texts.plan.sheet}>
        {items.map((item) => (
          <li key={item.number} title={item.prompt ?? ""}>
            <span>{number.format(item.number + 1)}</span>
            <span>{excerpt(item.prompt ?? item.negative ?? "", 80)}</span>
            <span>{tries > 1 && texts.plan.attempt(item.attempt)}</span>
          </li>
        ))}
      </ol>
      {count > items.length && <p className={styles.andMore}>{texts.plan.andMore(count - items.length)}</p>}
    </div>
  );
}

function Warning({ name, text }: { name: string; text: string }) {
  const rest = text.startsWith(name) ? text.slice(name.length) : ` ${text}`;
  return (
    <p className={styles.warning} role="status">
      <strong>{name}</strong>
      {rest}
    </p>
  );
}

function MissingCard({ choice, found, adding }: { choice: Choice; found: Estimate | null; adding: Adding }) {
  const { data: usual } = useQuery(missing(choice));
  // of what is filled in more is known, once it can be asked for
  const items = adding.missing ?? (found ? found.missing : usual)?.items ?? [];
  if (!items.length) return null;
  return (
    <ErrorCard tone="warn" title={texts.plan.missingTitle}>
      <ul className={styles.missing}>
        {items.map((each) => (
          <li key={`${each.kind} ${each.name}`}>
            {each.kind === "model" ? <Cuboid aria-hidden /> : <Boxes aria-hidden />}
            <code>{each.name}</code>
            <span>{texts.plan.kinds[each.kind] ?? each.kind}</span>
          </li>
        ))}
      </ul>
      <p>{texts.plan.missingAdvice}</p>
    </ErrorCard>
  );
}

/** What would be run: each argument in a frame of its own. */
function Shown({ command, prompts }: { command: Command; prompts: number }) {
  return (
    <section className={styles.command} aria-label={texts.script.command} id="command">
      <h3>{texts.script.command}</h3>
      {command.argv ? (
        <ol aria-label={texts.script.arguments}>
          {linesOf(command.argv).map((line) => (
            <li key={line.join("\u0000")}>
              {line.map((each, place) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: an argument is told from the others by its place alone
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

const PLACES: Record<string, number> = { first: 10, usual: 0, last: -10 };

function Options({ form, root }: { form: Form; root: string | null }) {
  const { draft } = form;
  const { plan } = texts;
  const place = Object.entries(PLACES).find(([, value]) => value === Math.sign(draft.priority) * 10)?.[0] ?? "usual";
  const isUsed = Boolean(draft.label || draft.outputFolder || draft.priority || draft.notify);
  return (
    <Fold className={styles.options} isNeeded={isUsed}>
      <summary>
        <span>{plan.more}</span>
        <ChevronDown aria-hidden />
      </summary>
      <div className={styles.optionFields}>
        <Field name={plan.name}>
          <TextField
            value={draft.label}
            maxLength={200}
            placeholder={form.choice.name}
            onChange={(event) => form.change({ label: event.target.value })}
          />
        </Field>
        {root !== null && (
          <Field name={plan.folder} hint={plan.folderHint(root)} problem={form.problems.output_folder}>
            <TextField
              value={draft.outputFolder}
              maxLength={200}
              placeholder={plan.folderPlaceholder}
              onChange={(event) => form.change({ outputFolder: event.target.value })}
            />
          </Field>
        )}
        <Field name={plan.place}>
          <Select
            value={place}
            choices={Object.entries(plan.places).map(([value, name]) => ({ value, name }))}
            onChange={(next) => form.change({ priority: PLACES[next] ?? 0 })}
          />
        </Field>
        {root !== null && (
          <Field name={plan.whenDone} hint={plan.whenDoneHint} problem={form.problems.notify_urls}>
            <TextField
              value={draft.notify}
              spellCheck={false}
              autoComplete="off"
              placeholder={plan.whenDonePlaceholder}
              onChange={(event) => form.change({ notify: event.target.value })}
            />
          </Field>
        )}
      </div>
    </Fold>
  );
}

interface SubmitProps {
  form: Form;
  adding: Adding;
  command: Command;
  count: number;
  isMissing: boolean;
  /** Why the folder that is to be worked on cannot be. */
  folderProblem: string | null;
}

export function Submit({ form, adding, command, count, isMissing, folderProblem }: SubmitProps) {
  const { choice } = form;
  const left = unsent(form.draft).length;
  const lacking = lackingInput(choice, form.draft);
  const isUnseen = choice.isScript && !command.isShown;
  const text = left
    ? texts.plan.sending(left)
    : adding.isBusy
      ? texts.plan.adding
      : isUnseen
        ? texts.script.show
        : lacking
          ? texts.plan.lacking(lacking.type)
          : isMissing || adding.missing
            ? texts.plan.addAnyway
            : choice.isScript
              ? texts.script.run(count)
              : texts.plan.add(count);
  const press = () => {
    if (isUnseen) {
      // what is wrong is said where it is
      form.setProblems(command.errors);
      document.getElementById("command")?.scrollIntoView({ block: "nearest" });
      return;
    }
    void adding.add(isMissing || adding.missing !== null);
  };
  return (
    <Button
      look="primary"
      size="large"
      isWide
      className={styles.add ?? ""}
      data-add
      isBusy={adding.isBusy}
      disabled={left > 0 || choice.waiting !== null || folderProblem !== null}
      title={folderProblem ?? undefined}
      onClick={press}
    >
      {text}
      <span className={styles.addKeys} aria-hidden>
        <Kbd keys="mod+Enter" />
      </span>
    </Button>
  );
}
