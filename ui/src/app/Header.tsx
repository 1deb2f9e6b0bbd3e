import { Search, X } from "lucide-react";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { IconButton, Kbd } from "@/kit";
import { common } from "@/texts/common";
import styles from "./Header.module.css";
import { useKeys } from "./keyboard";
import { useTitle } from "./title";

interface HeaderProps {
  title: string;
  /** Filters and the like, beside the search. */
  children?: ReactNode;
  search?: ReactNode;
  /** Buttons at the right side, the main one last. */
  actions?: ReactNode;
}

/** The head of an area: each area shows its own, as its first element. */
export function Header({ title, children, search, actions }: HeaderProps) {
  useTitle(title);
  return (
    <header className={styles.header}>
      <h1 className={styles.title} dir="auto">
        {title}
      </h1>
      {search}
      {children && <div className={styles.filters}>{children}</div>}
      {actions && <div className={styles.actions}>{actions}</div>}
    </header>
  );
}

interface SearchFieldProps {
  value: string;
  /** Told a moment after the last key. */
  onChange: (value: string) => void;
  placeholder: string;
}

const SETTLE_MS = 200;

export function SearchField({ value, onChange, placeholder }: SearchFieldProps) {
  const input = useRef<HTMLInputElement>(null);
  const [text, setText] = useState(value);
  const newest = useRef(onChange);
  newest.current = onChange;
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => newest.current(text), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [text, value]);
  const { keys } = common;
  useKeys([{ keys: "/", name: keys.focusSearch, group: keys.everywhere, run: () => input.current?.select() }]);
  return (
    <div className={styles.search} role="search">
      <Search aria-hidden className={styles.glass} />
      <input
        ref={input}
        type="search"
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
