import { type RefObject, useLayoutEffect, useRef } from "react";

/** A ref to the newest value, for callbacks that are registered once. Read it in event handlers and effects only. */
export function useLatest<T>(value: T): Readonly<RefObject<T>> {
  const ref = useRef(value);
  useLayoutEffect(() => {
    ref.current = value;
  });
  return ref;
}
