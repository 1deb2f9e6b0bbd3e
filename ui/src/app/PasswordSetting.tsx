import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { put, remove } from "@/api/client";
import { sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import { Button, Field, TextField, toast } from "@/kit";
import { settings as texts } from "@/texts/settings";
import styles from "./SettingsSheet.module.css";

/** Sets or removes the password of the page. The password itself is never shown. */
export function PasswordSetting({ hasPassword }: { hasPassword: boolean }) {
  const client = useQueryClient();
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const act = async (work: () => Promise<{ message?: string | null }>) => {
    try {
      const { message } = await work();
      setPassword("");
      setProblem(null);
      toast({ text: message ?? "", tone: "good" });
      await client.invalidateQueries({ queryKey: keys.desk });
    } catch (thrown) {
      setProblem(sentence(thrown));
    }
  };
  return (
    <Field name={texts.password.name} hint={hasPassword ? texts.password.set : texts.password.none} problem={problem}>
      <span className={styles.password}>
        <TextField
          type="password"
          autoComplete="new-password"
          placeholder={texts.password.newOne}
          value={password}
          onChange={(event) => setPassword(event.target.value)}
        />
        <Button disabled={!password} onClick={() => void act(() => put("/api/desk/password", { body: { password } }))}>
          {texts.password.change}
        </Button>
        {hasPassword && (
          <Button look="quiet" onClick={() => void act(() => remove("/api/desk/password"))}>
            {texts.password.remove}
          </Button>
        )}
      </span>
    </Field>
  );
}
