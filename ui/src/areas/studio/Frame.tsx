// What all pages of the studio have in common: the way between them, the balance, and pictures of effects.

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { AudioLines, Clapperboard, Coins, FileText, Image, type LucideIcon, Sparkles } from "lucide-react";
import { type CSSProperties, type ReactNode, useState } from "react";
import { here } from "@/api/client";
import { Header } from "@/app/Header";
import { kindOf, type MediaKind } from "@/kit/Media";
import { studio as texts } from "@/texts/studio";
import { balance, hueOf, isFilm, type Offered } from "./data";
import styles from "./studio.module.css";

interface HeadProps {
  title: string;
  search?: ReactNode;
  children?: ReactNode;
}

export function Head({ title, search, children }: HeadProps) {
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

export const KIND_ICONS: Readonly<Record<MediaKind, LucideIcon>> = {
  image: Image,
  video: Clapperboard,
  audio: AudioLines,
  text: FileText,
  other: Sparkles,
};

/** The picture or film of an effect, else what it made for you last, else colours of its own. */
export function Cover({ effect }: { effect: Offered }) {
  const [gone, setGone] = useState<readonly string[]>([]);
  const url = [effect.preview_url, effect.cover_url].find((each) => each && !gone.includes(each));
  if (!url) return <Placeholder of={effect.slug} kind={kindOf(effect.output_mime_type)} />;
  const lost = () => setGone((before) => [...before, url]);
  return isFilm(url) ? (
    <Film url={here(url)} onError={lost} />
  ) : (
    <img className={styles.picture} src={here(url)} alt="" loading="lazy" decoding="async" onError={lost} />
  );
}

/** Plays while the pointer is over its card, or the card has the focus. */
function Film({ url, onError }: { url: string; onError: () => void }) {
  return (
    <video
      className={styles.picture}
      src={`${url}#t=0.01`}
      aria-hidden
      muted
      loop
      playsInline
      preload="metadata"
      onError={onError}
      ref={(video) => {
        const card = video?.closest("a");
        if (!video || !card) return;
        const play = () => void video.play().catch(() => undefined);
        const rest = () => video.pause();
        for (const each of ["pointerenter", "focus"]) card.addEventListener(each, play);
        for (const each of ["pointerleave", "blur"]) card.addEventListener(each, rest);
        return () => {
          for (const each of ["pointerenter", "focus"]) card.removeEventListener(each, play);
          for (const each of ["pointerleave", "blur"]) card.removeEventListener(each, rest);
        };
      }}
    />
  );
}

export function Placeholder({ of, kind }: { of: string; kind: MediaKind }) {
  const Icon = KIND_ICONS[kind];
  return (
    <span className={styles.placeholder} style={{ "--hue": hueOf(of) } as CSSProperties} aria-hidden>
      <Icon strokeWidth={1.4} />
    </span>
  );
}
