import { useState } from "react";
import { post } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, toastProblem } from "@/kit";
import { settings as texts } from "@/texts/settings";
import styles from "./SettingsSheet.module.css";

type Result = components["schemas"]["NotificationTestResult"];

/** Sends a test to the current addresses, whether saved or not. */
export function TestNotifications({ urls }: { urls: readonly string[] }) {
  const [results, setResults] = useState<readonly Result[]>([]);
  const [isBusy, setBusy] = useState(false);
  const wanted = urls.map((each) => each.trim()).filter(Boolean);
  const test = async () => {
    setBusy(true);
    try {
      setResults((await post("/api/desk/notifications/test", { body: { urls: wanted } })).data.items);
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className={styles.test}>
      <Button size="small" isBusy={isBusy} disabled={!wanted.length} onClick={() => void test()}>
        {texts.test}
      </Button>
      <ul role="status">
        {results.map((each, at) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: two addresses may look the same without their secrets
          <li key={at} data-bad={each.problem ? true : undefined}>
            {each.url}: {each.problem ?? texts.testSent}
          </li>
        ))}
      </ul>
    </div>
  );
}
