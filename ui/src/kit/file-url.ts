// Signed file URLs expire, and a page may stay open for longer.

import { useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { renewUrls } from "@/api/queries";

export interface FileUrl {
  url: string;
  isBroken: boolean;
  /** Call it when the URL could not be loaded. */
  onError: () => void;
  retry: () => void;
}

/** The address of a file without its signature. */
export const withoutSignature = (url: string): string => url.split("?")[0] ?? url;

/** Keeps the URL of a file while it works: a new signature would reload the file and restart playback. When it fails, it
 * is replaced by the newest URL; if that one failed, new URLs are requested once. */
export function useFileUrl(newest: string): FileUrl {
  const client = useQueryClient();
  const [shown, setShown] = useState({ url: newest, isBroken: false });
  const renewed = useRef<string>(undefined);
  if (shown.url !== newest && (shown.isBroken || withoutSignature(shown.url) !== withoutSignature(newest))) {
    setShown({ url: newest, isBroken: false });
  }
  const onError = () => {
    if (shown.url !== newest) return setShown({ url: newest, isBroken: false });
    setShown({ url: newest, isBroken: true });
    if (renewed.current === withoutSignature(newest)) return;
    renewed.current = withoutSignature(newest);
    renewUrls(client);
  };
  return { ...shown, onError, retry: () => setShown({ url: newest, isBroken: false }) };
}
