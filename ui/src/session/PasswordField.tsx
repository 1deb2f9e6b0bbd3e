import { Eye, EyeOff } from "lucide-react";
import { useState } from "react";
import { IconButton, TextField } from "@/kit";
import { entry as texts } from "@/texts/entry";
import styles from "./PasswordField.module.css";

interface PasswordFieldProps {
  value: string;
  onChange: (value: string) => void;
  autoComplete: "current-password" | "new-password";
  autoFocus?: boolean;
}

export function PasswordField({ value, onChange, autoComplete, autoFocus = false }: PasswordFieldProps) {
  const [isShown, setShown] = useState(false);
  return (
    <div className={styles.password}>
      <TextField
        type={isShown ? "text" : "password"}
        name="password"
        autoComplete={autoComplete}
        required
        maxLength={1024}
        autoFocus={autoFocus}
        spellCheck={false}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
      <IconButton
        icon={isShown ? EyeOff : Eye}
        name={isShown ? texts.hide : texts.show}
        size="small"
        onClick={() => setShown(!isShown)}
      />
    </div>
  );
}
