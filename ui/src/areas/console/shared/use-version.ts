// Versions of objects that administrators edit, so that nobody overwrites another administrator's change unknowingly.

import { useRef } from "react";
import { type Answer, etagOf, type Version } from "@/api/client";
import { Problem } from "@/api/problem";
import { shared } from "@/texts/console-shared";

/** Sends a change with the version that was shown when the user began to edit. If someone else has changed the object
 * since then, the first attempt fails with a message, and the next one overwrites that change. */
export function useVersion(shown: object, isDirty: boolean) {
  const seen = useRef<Version>(etagOf(shown));
  if (!isDirty) seen.current = etagOf(shown);
  return async <T>(send: (version: Version) => Promise<Answer<T>>, refetch: () => unknown): Promise<Answer<T>> => {
    try {
      return await send(seen.current);
    } catch (thrown) {
      if (!(thrown instanceof Problem) || thrown.status !== 412) throw thrown;
      await refetch();
      seen.current = undefined;
      throw new Problem(shared.changedMeanwhile, 412);
    }
  };
}
