import { type ComponentProps, type ReactNode, useState } from "react";
import { here } from "@/api/client";

interface PosterProps extends Omit<ComponentProps<"img">, "src" | "alt" | "onError"> {
  url: string;
  /** Shown if the image is missing, expired or unreadable. */
  children?: ReactNode;
}

/** A thumbnail that never shows a broken image. */
export function Poster({ url, children = null, ...rest }: PosterProps) {
  const [broken, setBroken] = useState("");
  if (broken === url) return children;
  return <img src={here(url)} alt="" decoding="async" draggable={false} {...rest} onError={() => setBroken(url)} />;
}
