import { useMutation } from "@tanstack/react-query";
import { CircleAlert, CircleCheck, Info } from "lucide-react";
import { useEffect } from "react";
import { sentence } from "@/api/problem";
import { Button, ErrorCard, Skeleton } from "@/kit";
import { setup as texts } from "@/texts/setup";
import styles from "./StorageStep.module.css";
import step from "./step.module.css";
import { type CheckResult, checkStorage, isStorageUsable } from "./storage-check";

export function StorageStep({ onDone }: { onDone: () => void }) {
  const { mutate, data, isPending, error } = useMutation({ mutationFn: checkStorage });
  useEffect(() => mutate(), [mutate]);
  return (
    <>
      <p>{texts.storage.about}</p>
      {error && <ErrorCard title={sentence(error)} />}
      {!data && !error && <Skeleton height={160} />}
      {data && (
        <>
          <p className={styles.place}>
            <span>{texts.storage.place}</span>
            <code>{data.url}</code>
          </p>
          <ul className={styles.checks}>
            {data.checks.map((each) => (
              <CheckLine
                key={each.part}
                check={each}
                isOptional={each.part === "browsers" && isStorageUsable(data.checks)}
              />
            ))}
          </ul>
          {isStorageUsable(data.checks) && <p role="status">{texts.storage.isGood}</p>}
        </>
      )}
      <div className={step.actions}>
        <Button isBusy={isPending} onClick={() => mutate()}>
          {texts.storage.again}
        </Button>
        <Button look="primary" disabled={!data || !isStorageUsable(data.checks)} onClick={onDone}>
          {texts.next}
        </Button>
      </div>
    </>
  );
}

function CheckLine({ check, isOptional }: { check: CheckResult; isOptional: boolean }) {
  const tone = check.problem === null ? "good" : isOptional ? "info" : "bad";
  const Icon = { good: CircleCheck, info: Info, bad: CircleAlert }[tone];
  return (
    <li data-tone={tone}>
      <Icon aria-hidden />
      <div>
        {texts.storage.parts[check.part] ?? check.part}
        {check.problem !== null && <p>{isOptional ? texts.storage.optional : check.problem}</p>}
      </div>
    </li>
  );
}
