import { Search, X } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useKeys } from "@/lib/keyboard";
import { useLatest } from "@/lib/use-latest";
import { common } from "@/texts/common";
import { IconButton } from "./Button";
import { Kbd } from "./Kbd";
import styles from "./SearchField.module.css";

interface SearchFieldProps {
  value: string;
  /** Called shortly after the last keystroke. */
  onChange: (value: string) => void;
  placeholder: string;
}

const DEBOUNCE_MS = 200;
/** The API refuses longer filters. */
const MAX_LENGTH = 200;

export function SearchField({ value, onChange, placeholder }: SearchFieldProps) {
  const input = useRef<HTMLInputElement>(null);
  const [text, setText] = useState(value);
  const latest = useLatest(onChange);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => latest.current(text), DEBOUNCE_MS);
    return () => clearTimeout(timer);
  }, [text, value, latest]);
  const { keys } = common;
  useKeys([{ keys: "/", name: keys.focusSearch, group: keys.everywhere, run: () => input.current?.select() }]);
  return (
    <div className={styles.search} role="search">
      <Search aria-hidden className={styles.glass} />
      <input
        ref={input}
        type="search"
        maxLength={MAX_LENGTH}
        value={text}
        placeholder={placeholder}
        aria-label={placeholder}
        spellCheck={false}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.preventDefault();
          if (text) setText("");
          else event.currentTarget.blur();
        }}
      />
      {text ? (
        <IconButton icon={X} name={common.clear} size="small" onClick={() => setText("")} />
      ) : (
        <span className={styles.key} aria-hidden>
          <Kbd keys="/" />
        </span>
      )}
    </div>
  );
}
