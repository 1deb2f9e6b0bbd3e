/** The settings of the desk, and the code for a phone. */
export const settings = {
  open: "Settings",
  title: "Settings",
  about: (file: string) => `Changes are written to ${file}.`,
  save: "Save",
  saved: "Saved.",
  sources: {
    environment: (variable: string) => `Set in the environment: ${variable}`,
    "command line": () => "Given on the command line",
    file: () => "From the file",
    default: () => "Default",
  } as Readonly<Record<string, (variable: string) => string>>,
  afterRestart: "Applies after a restart.",
  needsRestart: "Saved. The desk uses the earlier value until it is restarted.",
  onePerLine: "One per line.",
  byDefault: (value: string) => `Default: ${value}`,
  nothing: "not set",
  events: { completed: "a job or batch completed", failed: "something failed", empty: "the queue is empty" } as Readonly<
    Record<string, string>
  >,
  test: "Test",
  testSent: "sent",
  password: {
    name: "Password",
    set: "A password is set. Other machines sign in with it.",
    none: "No password is set. Other machines cannot sign in.",
    change: "Set password",
    remove: "Remove password",
    newOne: "New password",
  },
  phone: {
    open: "Open on a phone",
    title: "Open on a phone",
    about: "Scan the code with the phone's camera. It signs one phone in as you, works once, and for ten minutes.",
    code: "QR code that opens this desk",
    again: "New code",
    unsafe: "In the same network only. The connection is not encrypted.",
  },
};
