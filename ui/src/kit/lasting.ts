// URLs of files work for a while, and a page may be open for longer.

import { useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { renewUrls } from "@/api/queries";

export interface Lasting {
  url: string;
  isGone: boolean;
  /** It could not be had. */
  failed: () => void;
  again: () => void;
}

const fileOf = (url: string): string | undefined => url.split("?")[0];

/** The same address of a file while it works: with another signature it would be loaded, and played, from its beginning.
 * Where it works no longer, the newest takes its place; one that nobody has is asked for once. */
export function useLasting(newest: string): Lasting {
  const client = useQueryClient();
  const [shown, setShown] = useState({ url: newest, isGone: false });
  const asked = useRef<string>(undefined);
  if (shown.url !== newest && (shown.isGone || fileOf(shown.url) !== fileOf(newest))) {
    setShown({ url: newest, isGone: false });
  }
  const failed = () => {
    if (shown.url !== newest) return setShown({ url: newest, isGone: false });
    setShown({ url: newest, isGone: true });
    if (asked.current === fileOf(newest)) return;
    asked.current = fileOf(newest);
    renewUrls(client);
  };
  return { ...shown, failed, again: () => setShown({ url: newest, isGone: false }) };
}
