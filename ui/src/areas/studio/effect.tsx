import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { ArrowLeft, FileQuestion, Play, Wallet } from "lucide-react";
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { newKey, post } from "@/api/client";
import { written } from "@/api/json";
import { Problem, sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import { typeOf } from "@/api/uploads";
import { Collapsible } from "@/areas/create/Collapsible";
import { type Draft, pendingUploads } from "@/areas/create/drafts";
import { FileInputs } from "@/areas/create/FileInputs";
import { type Form, useForm, validateDraft } from "@/areas/create/form";
import { InputField } from "@/areas/create/InputField";
import { acceptsMime, type Choice, choicesOf, primaryOf, sectionsOf } from "@/areas/create/inputs";
import { errorsByField, payloadOf } from "@/areas/create/submission";
import { isChanged } from "@/areas/create/values";
import { Button, buttonClass, EmptyState, ErrorCard, Heading, Skeleton } from "@/kit";
import { kindOf } from "@/kit/Media";
import { useDroppedFiles } from "@/lib/file-drop";
import { studio, tokens } from "@/texts/studio";
import { balance, effect as effectQuery, type Offered, useEffectOf } from "./data";
import { Cover, Head } from "./Frame";
import { type Sender, useSending } from "./sending";
import styles from "./studio.module.css";
import { UploadPlace } from "./UploadPlace";

const texts = studio.effect;

export default function EffectPage() {
  const { slug } = useParams({ from: "/studio/effects/$slug" });
  const { data, error } = useQuery(effectQuery(slug));
  return (
    <>
      <Head title={data?.name ?? studio.title} />
      {data === null && (
        <EmptyState icon={FileQuestion} title={texts.gone} text={texts.goneText}>
          <Link to="/studio" className={buttonClass({})}>
            {texts.back}
          </Link>
        </EmptyState>
      )}
      {error && data === undefined && (
        <div className={styles.content}>
          <ErrorCard title={sentence(error)} />
        </div>
      )}
      {data === undefined && !error && (
        <div className={styles.content} role="status" aria-label={studio.loading}>
          <Skeleton height={380} />
        </div>
      )}
      {data && <Page key={data.slug} effect={data} />}
    </>
  );
}

/** Its form is kept apart from the one that Create has of the same effect. */
function choiceOf(effect: Offered): Choice {
  const [found] = choicesOf([effect], [], null);
  return { ...(found as Choice), slug: `studio.${effect.slug}` };
}

/** One text is one text here, however many lines it has. */
const asOne = (draft: Draft): Draft => ({ ...draft, byLine: false, negativesByLine: false, tries: "1", folder: null });

function Page({ effect }: { effect: Offered }) {
  const choice = useMemo(() => choiceOf(effect), [effect]);
  const form = useForm(choice);
  const primary = primaryOf(choice);
  const sender = useSending();
  // what it made last is told in lists
  const listed = useEffectOf({ effect_id: effect.id });
  const { data: purse } = useQuery(balance);
  const lacks = purse ? Math.max(0, effect.credits_cost - purse.balance) : 0;
  const starting = useStarting(effect, form, sender);

  const [wrong, setWrong] = useState<string | null>(null);
  const take = (files: readonly File[]) => {
    const [file] = files;
    if (!file || !primary || lacks) return;
    if (!acceptsMime(primary, typeOf(file))) return setWrong(texts.wrongType(file.name, primary.type));
    setWrong(null);
    sender.start(file);
  };
  useDroppedFiles((files) => take(files.map((each) => each.file)));

  return (
    <div className={styles.effectPage}>
      <div className={styles.main}>
        <Link to="/studio" className={styles.back}>
          <ArrowLeft aria-hidden />
          {texts.back}
        </Link>
        {lacks > 0 && purse && <TooFew need={effect.credits_cost} have={purse.balance} topUpUrl={purse.topUpUrl} />}
        {primary && (
          <section className={styles.part} aria-label={texts.yours[primary.type]}>
            <Heading>
              {texts.yours[primary.type]}
              {!primary.required && <span className={styles.optional}>{texts.optional}</span>}
            </Heading>
            <UploadPlace
              type={primary.type}
              sender={sender}
              isDisabled={lacks > 0}
              problem={wrong ?? starting.fileProblem}
              onFiles={take}
            />
          </section>
        )}
        <Settings form={form} isDisabled={lacks > 0} />
      </div>
      <aside className={styles.side} aria-label={texts.cost}>
        <div className={styles.sideCover}>
          <Cover effect={{ ...effect, cover_url: listed?.cover_url ?? null }} />
        </div>
        <Facts effect={effect} balance={purse?.balance} />
        {starting.problem && <ErrorCard title={starting.problem} />}
        <Start effect={effect} starting={starting} isDisabled={lacks > 0} />
      </aside>
    </div>
  );
}

interface TooFewProps {
  need: number;
  have: number;
  topUpUrl: string | null;
}

function TooFew({ need, have, topUpUrl }: TooFewProps) {
  return (
    <ErrorCard
      tone="warn"
      title={texts.tooFew(need, have)}
      actions={
        <>
          {topUpUrl && (
            <a
              className={buttonClass({ look: "primary", size: "small" })}
              href={topUpUrl}
              target="_blank"
              rel="noreferrer"
            >
              {texts.topUp}
            </a>
          )}
          <Link to="/wallet" className={buttonClass({ size: "small" })}>
            <Wallet aria-hidden />
            {texts.toWallet}
          </Link>
        </>
      }
    >
      {texts.missing(need - have)} {topUpUrl ? texts.topUpText : texts.askAdministrator}
    </ErrorCard>
  );
}

function Settings({ form, isDisabled }: { form: Form; isDisabled: boolean }) {
  const { choice, draft } = form;
  const primary = primaryOf(choice);
  const sections = sectionsOf(choice);
  const files = sections.files.filter((each) => each !== primary);
  if (choice.properties.every((each) => each === primary)) return null;
  return (
    <section className={styles.part} aria-label={texts.settings}>
      <Heading>{texts.settings}</Heading>
      <form className={styles.form} onSubmit={(event) => event.preventDefault()} noValidate>
        {files.map((each) => (
          <FileInputs
            key={each.key}
            form={form}
            input={each}
            root={null}
            folderProblem={null}
            onSample={null}
            isDisabled={isDisabled}
          />
        ))}
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
        {sections.groups.map(({ name, inputs }) => (
          <Collapsible
            key={name}
            className={styles.fold}
            isNeeded={inputs.some((each) => each.key in form.problems || isChanged(each, choice, draft.texts))}
          >
            <summary>{name}</summary>
            <div className={styles.fields}>
              {inputs.map((each) => (
                <InputField key={each.key} form={form} input={each} />
              ))}
            </div>
          </Collapsible>
        ))}
      </form>
    </section>
  );
}

function Facts({ effect, balance: left }: { effect: Offered; balance: number | undefined }) {
  const kind = kindOf(effect.output_mime_type);
  const seconds = effect.last_processing_time_seconds;
  const facts: [string, ReactNode][] = [[texts.cost, <strong key="cost">{studio.cost(effect.credits_cost)}</strong>]];
  if (left !== undefined) {
    facts.push([texts.balance, tokens(left)]);
    if (left >= effect.credits_cost && effect.credits_cost > 0) {
      facts.push([texts.after, tokens(left - effect.credits_cost)]);
    }
  }
  if (typeof seconds === "number") facts.push([texts.time, studio.takes(seconds)]);
  facts.push([texts.result, `${studio.makes[kind]} (${effect.output_extension})`]);
  return (
    <dl className={styles.facts}>
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

interface StartProps {
  effect: Offered;
  starting: Starting;
  isDisabled: boolean;
}

function Start({ effect, starting, isDisabled }: StartProps) {
  return (
    <div className={styles.start}>
      <Button
        look="primary"
        size="large"
        isWide
        icon={Play}
        isBusy={starting.isBusy || starting.isWanted}
        disabled={isDisabled}
        onClick={starting.start}
      >
        {starting.isBusy ? texts.starting : starting.isWanted ? texts.startsSoon : texts.start(effect.credits_cost)}
      </Button>
      {starting.isWanted && (
        <Button look="quiet" size="small" onClick={starting.dismiss}>
          {texts.dontStart}
        </Button>
      )}
      {effect.credits_cost > 0 && <p className={styles.quiet}>{texts.refundable}</p>}
    </div>
  );
}

interface Starting {
  start: () => void;
  dismiss: () => void;
  /** It was pressed while the file is still on its way. */
  isWanted: boolean;
  isBusy: boolean;
  problem: string | null;
  fileProblem: string | null;
}

/** How it stands with the files beside the main one: nothing is started without one of them. */
function othersOf(draft: Draft): "sent" | "sending" | "refused" {
  if (Object.values(draft.files).some((given) => given.some((each) => each.problem))) return "refused";
  return pendingUploads(draft).length ? "sending" : "sent";
}

/** From a filled form to a job; the same request that is sent again makes no second one. */
function useStarting(effect: Offered, form: Form, { sending }: Sender): Starting {
  const navigate = useNavigate();
  const client = useQueryClient();
  const primary = primaryOf(form.choice);
  const [isWanted, setWanted] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const [fileProblem, setFileProblem] = useState<string | null>(null);
  const others = othersOf(form.draft);
  const videos = useRef(new Map<string, string>());
  const last = useRef({ text: "", key: "" });

  const isSubmitting = useRef(false);

  const submit = async () => {
    // whatever asks for it twice: two at once would make two videos of the file, and of these two jobs
    if (isSubmitting.current) return;
    isSubmitting.current = true;
    setBusy(true);
    setProblem(null);
    try {
      const videoId = sending?.id ? await videoOf(sending.id) : null;
      const body = {
        effect_id: effect.id,
        input_payload: payloadOf(form.choice, asOne(form.draft)),
        // what the button says, and not what it may cost by now
        expected_tokens: effect.credits_cost,
        ...(videoId && { video_id: videoId }),
      };
      const text = written(body);
      if (last.current.text !== text) last.current = { text, key: newKey() };
      const { data: job } = await post("/api/ai-jobs", {
        body: { ...body, idempotency_key: last.current.key } as never,
      });
      void client.invalidateQueries({ queryKey: keys.wallet });
      void client.invalidateQueries({ queryKey: keys.jobs });
      await navigate({ to: "/studio/videos/$id", params: { id: job.id } });
    } catch (thrown) {
      const { errors } = thrown instanceof Problem ? thrown : { errors: {} };
      const byField = errorsByField(form.choice, errors);
      form.setProblems(byField);
      if (primary && byField[primary.key]) setFileProblem(byField[primary.key] ?? null);
      setProblem(sentence(thrown));
      // somebody else may have spent them, or the price is another one
      void client.invalidateQueries({ queryKey: keys.wallet });
      void client.invalidateQueries({ queryKey: keys.effects });
    } finally {
      isSubmitting.current = false;
      setBusy(false);
      setWanted(false);
    }
  };

  /** A file that was sent is a video once, however often it is started with. */
  const videoOf = async (fileId: string): Promise<string> => {
    const known = videos.current.get(fileId);
    if (known) return known;
    const { data } = await post("/api/videos", { body: { original_file_id: fileId, effect_id: effect.id } });
    videos.current.set(fileId, data.id);
    return data.id;
  };

  const start = () => {
    const { [primary?.key ?? ""]: _file, ...found } = validateDraft(form.choice, asOne(form.draft));
    const isLacking = Boolean(primary?.required && (!sending || sending.state === "refused"));
    form.setProblems(found);
    setFileProblem(isLacking ? texts.needsFile : null);
    const isWrong = Object.keys(found).length > 0;
    setProblem(isWrong ? texts.fix : isLacking ? texts.needsFile : others === "refused" ? texts.refusedOther : null);
    if (isWrong || isLacking || others === "refused") return;
    if ((sending && sending.state !== "sent") || others === "sending") setWanted(true);
    else void submit();
  };

  const state = sending?.state ?? null;
  useEffect(() => {
    if (state) setFileProblem(null);
  }, [state]);
  const newest = useRef(submit);
  newest.current = submit;
  useEffect(() => {
    if (!isWanted) return;
    const isOff = (state === null && primary?.required) || state === "refused" || others === "refused";
    if (isOff) {
      setWanted(false);
      if (others === "refused") setProblem(texts.refusedOther);
    } else if ((state === null || state === "sent") && others === "sent") void newest.current();
  }, [isWanted, state, others, primary]);

  return { start, dismiss: () => setWanted(false), isWanted, isBusy, problem, fileProblem };
}
