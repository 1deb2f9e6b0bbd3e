import { Link, useNavigate } from "@tanstack/react-router";
import { X } from "lucide-react";
import { IconButton } from "@/kit";
import { create as texts } from "@/texts/create";
import type { Form } from "./form";
import styles from "./form.module.css";
import { textOf } from "./values";

/** The recalled job, and how many values differ. */
export function RecallBanner({ form }: { form: Form }) {
  const { from } = form.draft;
  const navigate = useNavigate({ from: "/create" });
  if (!from) return null;
  const end = () => {
    form.change({ from: null });
    // without `from`: a reload would recall the job again
    void navigate({ search: { workflow: form.choice.slug }, replace: true });
  };
  const differs = form.choice.properties.filter((each) => {
    const was = form.recalledText(each);
    return was !== null && was !== textOf(each, form.choice, form.draft.texts);
  }).length;
  return (
    <div className={styles.from} role="status">
      <p>
        <strong>{texts.from.title(from.label)}</strong>
        <span>{differs ? texts.from.differs(differs) : texts.from.same}</span>
      </p>
      <Link to="/jobs/$id" params={{ id: from.id }}>
        {texts.from.open}
      </Link>
      <IconButton icon={X} name={texts.from.end} size="small" onClick={end} />
    </div>
  );
}
