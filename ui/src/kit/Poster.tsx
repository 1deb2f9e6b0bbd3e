import { type ComponentProps, type ReactNode, useState } from "react";
import { here } from "@/api/client";

interface PosterProps extends Omit<ComponentProps<"img">, "src" | "alt" | "onError"> {
  url: string;
  /** Where it cannot be shown: it is gone, its time is over, or the browser cannot read it. */
  children?: ReactNode;
}

/** A small picture beside a name. What cannot be shown is left out: nobody sees a broken image. */
export function Poster({ url, children = null, ...rest }: PosterProps) {
  const [broken, setBroken] = useState("");
  if (broken === url) return children;
  return <img src={here(url)} alt="" decoding="async" draggable={false} {...rest} onError={() => setBroken(url)} />;
}
