import type { Missing } from "@/api/problem";
import { Button, Dialog } from "@/kit";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import styles from "./missing.module.css";

export type Question =
  | { about: "missing"; name: string; graph: unknown; problem: string; missing: readonly Missing[]; carried: boolean }
  | { about: "taken"; name: string; known: string; graph: unknown; slug: string; waits: boolean; carried: boolean }
  | { about: "refused"; name: string; problem: string }
  | { about: "carried"; file: File; id: string; graph: unknown };

interface ImportDialogProps {
  question: Question;
  isBusy: boolean;
  onClose: () => void;
  onImport: (graph: unknown, name: string, waits: boolean, isCarried: boolean) => void;
  onReplace: (graph: unknown, name: string, slug: string, isCarried: boolean) => void;
  onKeepBoth: (graph: unknown, name: string, waits: boolean, isCarried: boolean) => void;
  onUseAsInput: (id: string, file: File) => void;
}

/** Shows why a file was not imported, or asks what to do with media that contain a workflow or with a taken name. */
export function ImportDialog(props: ImportDialogProps) {
  const { question, isBusy, onClose, onImport, onUseAsInput } = props;
  if (question.about === "taken") return <SameNameDialog {...props} question={question} />;
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={
        question.about === "carried"
          ? texts.dropping.hasWorkflow(question.file.name)
          : texts.dropping.notAdded(question.name)
      }
      about={question.about === "carried" ? texts.dropping.hasWorkflowAbout : question.problem}
      actions={
        question.about === "carried" ? (
          <>
            <Button onClick={onClose}>{common.cancel}</Button>
            <Button onClick={() => onUseAsInput(question.id, question.file)}>{texts.dropping.asInput}</Button>
            <Button
              look="primary"
              isBusy={isBusy}
              onClick={() => onImport(question.graph, question.file.name, false, true)}
            >
              {texts.dropping.again}
            </Button>
          </>
        ) : (
          <>
            <Button onClick={onClose}>{common.close}</Button>
            {question.about === "missing" && (
              <Button
                look="primary"
                isBusy={isBusy}
                onClick={() => onImport(question.graph, question.name, true, question.carried)}
              >
                {texts.dropping.anyway}
              </Button>
            )}
          </>
        )
      }
    >
      {question.about === "missing" && (
        <>
          <ul className={styles.missing}>
            {question.missing.map((each) => (
              <li key={`${each.kind} ${each.name}`}>
                <code>{each.name}</code>
                <span>{texts.plan.kinds[each.kind] ?? each.kind}</span>
              </li>
            ))}
          </ul>
          <p className={styles.advice}>{texts.dropping.anywayAdvice}</p>
        </>
      )}
    </Dialog>
  );
}

type Taken = Extract<Question, { about: "taken" }>;

function SameNameDialog({
  question: { name, known, graph, slug, waits, carried },
  isBusy,
  onClose,
  onReplace,
  onKeepBoth,
}: ImportDialogProps & { question: Taken }) {
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.dropping.taken(known)}
      about={texts.dropping.takenAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button isBusy={isBusy} onClick={() => onKeepBoth(graph, name, waits, carried)}>
            {texts.dropping.keepBoth}
          </Button>
          <Button look="primary" isBusy={isBusy} onClick={() => onReplace(graph, name, slug, carried)}>
            {texts.dropping.replace}
          </Button>
        </>
      }
    />
  );
}
