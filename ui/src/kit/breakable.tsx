import type { ReactNode } from "react";

/** After separators inside a name, but not inside a number such as 1.5. */
const PLACES = /(?<=\w[_\-/\\])(?=[^\s_\-/\\])|(?<=\w\.)(?=[^\s\d.])/;

/** A text whose long names break at their separators. The text itself does not change. */
export const breakable = (text: string): ReactNode =>
  // biome-ignore lint/suspicious/noArrayIndexKey: the parts have no other identity
  text.split(PLACES).flatMap((part, index) => (index ? [<wbr key={index} />, part] : [part]));
