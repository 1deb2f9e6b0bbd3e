// Texts shared by the catalogue, tenant and operations pages.

import { number, plural } from "./common";

const MICROS = 1_000_000;
const moment = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const price = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });

export const shared = {
  /** Date and time, for the tooltip of a relative time. */
  moment: (at: string) => moment.format(new Date(at)),
  tokens: (count: number) => plural(count, "token"),
  count: (count: number) => number.format(count),
  /** Amounts are stored in millionths. */
  money: (micros: number) => price.format(micros / MICROS),
  save: "Save",
  saved: "Saved.",
  changedMeanwhile:
    "Someone else has changed this since you opened it. Nothing was saved. The page shows the new values; save again to keep yours.",
  unsaved: "Unsaved changes",
  discard: "Discard changes",
  delete: "Delete",
  deleted: (name: string) => `Deleted ${name}.`,
  more: "Show more",
  again: "Try again",
  back: "Back",
  yes: "Yes",
  no: "No",
  never: "never",
  nothing: "—",
  name: "Name",
  slug: "Slug",
  active: "Active",
  inactive: "Inactive",
  shownOnce: "Copy it now. It is shown only once.",
  leaving: {
    title: "Discard unsaved changes?",
    about: "Your changes are not saved and will be lost.",
    stay: "Keep editing",
    leave: "Discard changes",
  },
  wrongSlug: "Use at most 100 letters, digits, dots, hyphens and underscores. Start with a letter or digit.",
};

export const shells = {
  name: "Shell",
  posix: "Linux, macOS",
  powershell: "Windows (PowerShell)",
  onlyHere:
    "This command only works on the server itself. For other machines, start the server with COMFYRELAY_HOST=0.0.0.0, and set COMFYRELAY_PUBLIC_URL to its address and the secrets COMFYRELAY_FLEET_SECRETS and COMFYRELAY_SIGNING_SECRETS.",
};
