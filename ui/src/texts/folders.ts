/** The dialog that chooses a folder on the desk's machine. */
export const folders = {
  title: "Choose a folder",
  about: "Folders on the desk's machine.",
  here: "This folder",
  up: "Up",
  none: "No folders in here.",
  hidden: "Show hidden folders",
  more: (count: number) => `${count} more folders are not shown.`,
  newFolder: "New folder",
  create: "Create",
  choose: "Choose…",
  chooseFor: (what: string) => `Choose ${what}`,
  useThis: "Use this folder",
  clear: "Use default",
  whole: "The whole input folder",
};
