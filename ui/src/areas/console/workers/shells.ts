// The command that makes a machine a worker, for the shell of that machine.

import { shells as texts } from "@/texts/console-shared";

export const SHELLS = [
  { value: "posix", name: texts.posix },
  { value: "powershell", name: texts.powershell },
] as const;

/** Until somebody says otherwise: most GPUs of servers are there. */
export const SHELL = "posix";

export const commandFor = (shell: string, { command, powershell }: { command: string; powershell: string }): string =>
  shell === "powershell" ? powershell : command;

/** Whether the server's address, as the command has it, leads other machines to themselves. */
export const isOnlyHere = ({ variables }: { variables: Record<string, string> }): boolean =>
  /^https?:\/\/(localhost|127\.|\[::1\])/.test(variables.API_BASE_URL ?? "");
