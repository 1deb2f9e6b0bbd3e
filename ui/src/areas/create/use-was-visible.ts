import { type RefObject, useEffect, useState } from "react";

/** Whether it was ever visible: details are only fetched for visible entries. */
export function useWasVisible(of: RefObject<HTMLElement | null>): boolean {
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(
      (entries) => entries.some((each) => each.isIntersecting) && setSeen(true),
    );
    if (of.current) observer.observe(of.current);
    return () => observer.disconnect();
  }, [of]);
  return isSeen;
}
