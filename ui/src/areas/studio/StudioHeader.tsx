// Header of the studio pages.

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Coins } from "lucide-react";
import type { ReactNode } from "react";
import { Header } from "@/kit/Header";
import { studio as texts } from "@/texts/studio";
import { balance } from "./queries";
import styles from "./StudioHeader.module.css";

interface StudioHeaderProps {
  title: string;
  search?: ReactNode;
  children?: ReactNode;
}

export function StudioHeader({ title, search, children }: StudioHeaderProps) {
  return (
    <Header title={title} {...(search && { search })} actions={<Balance />}>
      <nav className={styles.pages} aria-label={texts.pages}>
        <Link
          to="/studio"
          activeOptions={{ exact: true, includeSearch: false }}
          activeProps={{ "aria-current": "page" }}
          className={styles.page}
        >
          {texts.effects}
        </Link>
        <Link
          to="/studio/videos"
          activeOptions={{ exact: true, includeSearch: false }}
          activeProps={{ "aria-current": "page" }}
          className={styles.page}
        >
          {texts.videos}
        </Link>
      </nav>
      {children}
    </Header>
  );
}

function Balance() {
  const { data } = useQuery(balance);
  if (!data) return null;
  return (
    <Link
      to="/wallet"
      className={styles.balance}
      aria-label={texts.balanceName(data.balance)}
      title={texts.balanceName(data.balance)}
    >
      <Coins aria-hidden />
      {texts.balance(data.balance)}
    </Link>
  );
}
