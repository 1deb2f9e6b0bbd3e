import { type ComponentProps, createContext, type ReactNode, useContext, useId } from "react";
import { classes } from "./classes";
import styles from "./Field.module.css";

interface ControlProps {
  id: string;
  "aria-describedby": string | undefined;
  "aria-invalid": boolean | undefined;
  "aria-required": boolean | undefined;
}

const FieldContext = createContext<ControlProps | null>(null);
/** The id and ARIA attributes that the surrounding field gives its control. */
export const useFieldProps = (): Partial<ControlProps> => useContext(FieldContext) ?? {};

interface FieldProps {
  name: ReactNode;
  /** At the right end of the label. */
  aside?: ReactNode;
  hint?: ReactNode;
  problem?: string | null | undefined;
  isRequired?: boolean;
  children: ReactNode;
}

export function Field({ name, aside, hint, problem, isRequired, children }: FieldProps) {
  const id = useId();
  const control = {
    id,
    "aria-describedby": classes(hint ? `${id}-hint` : null, problem && `${id}-problem`) || undefined,
    "aria-invalid": problem ? true : undefined,
    "aria-required": isRequired || undefined,
  };
  return (
    <div className={styles.field}>
      <div className={styles.top}>
        <label className={styles.label} htmlFor={id}>
          {name}
        </label>
        {aside && <span className={styles.aside}>{aside}</span>}
      </div>
      <FieldContext.Provider value={control}>{children}</FieldContext.Provider>
      {hint && (
        <p className={styles.hint} id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {problem && (
        <p className={styles.problem} id={`${id}-problem`} role="alert">
          {problem}
        </p>
      )}
    </div>
  );
}

export function TextField({ className, ...rest }: ComponentProps<"input">) {
  return <input type="text" {...useFieldProps()} {...rest} className={classes(styles.control, className)} />;
}

export function TextArea({ className, ...rest }: ComponentProps<"textarea">) {
  return <textarea rows={3} {...useFieldProps()} {...rest} className={classes(styles.control, className)} />;
}
