// The join command by shell.

import { shells as texts } from "@/texts/console-shared";

export const SHELLS = [
  { value: "posix", name: texts.posix },
  { value: "powershell", name: texts.powershell },
] as const;

/** Most GPU servers run Linux. */
export const SHELL = "posix";

export const commandFor = (shell: string, { command, powershell }: { command: string; powershell: string }): string =>
  shell === "powershell" ? powershell : command;

export const installFor = (shell: string, found: { install: string; powershell_install: string }): string =>
  shell === "powershell" ? found.powershell_install : found.install;

/** Whether the command contains a loopback address. */
export const isOnlyHere = ({ variables }: { variables: Record<string, string> }): boolean =>
  /^https?:\/\/(localhost|127\.|\[::1\])/.test(variables.API_BASE_URL ?? "");
