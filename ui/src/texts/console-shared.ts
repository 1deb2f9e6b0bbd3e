// What the pages for the catalogue, accounts and operation say alike.

import { number, plural } from "./common";

const MICROS = 1_000_000;
const moment = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const price = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });

export const shared = {
  /** The whole moment, where `ago` says only how long it is. */
  moment: (at: string) => moment.format(new Date(at)),
  tokens: (count: number) => plural(count, "token"),
  count: (count: number) => number.format(count),
  /** Money is kept in millionths. */
  money: (micros: number) => price.format(micros / MICROS),
  save: "Save",
  saved: "Saved.",
  unsaved: "Not saved yet",
  discard: "Discard changes",
  delete: "Delete",
  deleted: (name: string) => `${name} is deleted.`,
  more: "Show more",
  again: "Try again",
  back: "Back",
  yes: "Yes",
  no: "No",
  never: "never",
  nothing: "—",
  name: "Name",
  slug: "Address",
  active: "In use",
  inactive: "Switched off",
  shownOnce: "It is shown only once. Copy it now.",
  leaving: {
    title: "Leave without saving?",
    about: "What you changed here is not saved yet, and is lost when you leave.",
    stay: "Stay",
    leave: "Leave without saving",
  },
  wrongSlug: "Letters, digits, dots, hyphens and underscores, beginning with a letter or digit; at most 100.",
};

/** Where a command is typed. */
export const shells = {
  name: "Shell",
  posix: "Linux, macOS",
  powershell: "Windows (PowerShell)",
  onlyHere:
    "This works on the server's own machine only. For others, start the server with COMFYRELAY_HOST=0.0.0.0 and with COMFYRELAY_PUBLIC_URL, the address that they reach it by.",
};
