import { useEffect, useState } from "react";

/** The number of outputs added at the top while the user is scrolled down. */
export function useNewCount(order: readonly string[], words: string, isAtTop: boolean, isKnown: boolean): number {
  const [first, setFirst] = useState<{ words: string; id: string | undefined } | null>(null);
  const isNew = isKnown && (isAtTop || first?.words !== words || !first.id);
  useEffect(() => {
    if (isNew) setFirst({ words, id: order[0] });
  }, [isNew, words, order]);
  if (isNew || !isKnown || !first?.id) return 0;
  return Math.max(0, order.indexOf(first.id));
}
