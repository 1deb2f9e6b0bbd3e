import { clock, common, isolated, number, plural } from "./common";

const dayAndMonth = new Intl.DateTimeFormat("en", { weekday: "long", day: "numeric", month: "long" });
const withYear = new Intl.DateTimeFormat("en", { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const moment = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

/** `2026-11-16` as people call it. */
function day(name: string, now = new Date()): string {
  const date = new Date(`${name}T12:00:00`);
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate(), 12);
  const ago = Math.round((midnight.getTime() - date.getTime()) / 86_400_000);
  if (ago === 0) return "Today";
  if (ago === 1) return "Yesterday";
  return (date.getFullYear() === now.getFullYear() ? dayAndMonth : withYear).format(date);
}

const outputs = (count: number) => plural(count, "output");

export const gallery = {
  title: common.areas.gallery,
  search: "Search prompts, names, notes",
  grid: "Outputs",
  outputs,
  heading: (name: string, count: number) => `${isolated(name)} · ${outputs(count)}`,
  day,
  moment: (at: string) => moment.format(new Date(at)),
  noGroup: {
    day: "Unknown day",
    batch: "Not in a batch",
    workflow: "Unknown workflow",
    prompt: "Without a prompt",
  } as Readonly<Record<string, string>>,
  empty: "Your work will show up here",
  emptyAdvice:
    "Every picture, video, audio file and text that your jobs make appears here by itself, newest first. Star what you like, compare versions side by side, and download the best.",
  emptyAction: "Create something",
  emptyCollection: "Nothing in this collection yet",
  emptyCollectionAdvice: "Select outputs in the gallery, then choose Collection in the bar below them.",
  noMatch: "Nothing matches",
  noMatchAdvice: "No output has all of this. Remove a filter, or search for fewer words.",
  showAll: "Show everything",
  cut: (shown: number, total: number) =>
    `These are the first ${number.format(shown)} of ${outputs(total)}. Use filters to see the others.`,
  fresh: (count: number) => `${number.format(count)} new`,
  toTop: "Go to the top",
  filters: {
    all: "Everything",
    starred: "Starred",
    rejected: "Rejected",
    unmarked: "Unmarked",
    more: "More",
    image: "Pictures",
    video: "Videos",
    audio: "Audio",
    text: "Text",
    day: "Day",
    workflow: "Workflow",
    anyWorkflow: "Any workflow",
    batch: (name: string) => `Batch: ${isolated(name)}`,
    oneBatch: "One batch",
    remove: (name: string) => `Remove filter ${isolated(name)}`,
  } as const,
  view: {
    name: "View",
    newest: "Newest first",
    oldest: "Oldest first",
    by: { day: "By day", batch: "By batch", workflow: "By workflow", prompt: "By prompt" },
    sizes: { small: "Small", medium: "Medium", large: "Large" },
  },
  tile: {
    name: (name: string, about: readonly string[]) => [isolated(name), ...about].join(", "),
    starred: "starred",
    rejected: "rejected",
    noted: "has a note",
    select: (name: string) => `Select ${isolated(name)}`,
    still: "picture",
    length: clock,
    unnamed: "Output",
  },
  kinds: { image: "picture", video: "video", audio: "audio", text: "text", other: "file" } as Readonly<
    Record<string, string>
  >,
  verbs: {
    open: "Open",
    star: "Star",
    unstar: "Remove star",
    reject: "Reject",
    unreject: "Not rejected",
    compare: "Compare",
    recall: "Change and run",
    useAsInput: "Use as input",
    download: "Download",
    zip: "Zip",
    downloadZip: "Download as zip",
    copyTo: "Copy to folder",
    copyPath: "Copy path",
    copyPrompt: "Copy prompt",
    openJob: "Open job",
    sameBatch: "Show this batch",
    collection: "Collection",
    addTo: "Add to collection",
    release: "Remove from this collection",
    delete: "Delete",
    selectAll: "Select all that match",
    all: (total: number) => `All ${number.format(total)}`,
    select: "Select",
    deselect: "Remove from selection",
    extend: "Select up to here",
    more: "More",
    undo: "Undo",
  },
  keys: {
    next: "Next",
    previous: "Previous",
    left: "One left",
    right: "One right",
    above: "One up",
    below: "One down",
    first: "First",
    last: "Last",
    zoomIn: "Zoom in",
    zoomOut: "Zoom out",
    fit: "Fit to screen",
    own: "Actual size (100 %)",
    info: "Info",
    play: "Play or pause",
  },
  lightbox: {
    name: (name: string) => `Output ${isolated(name)}`,
    position: (at: number, total: number) => `${number.format(at)} of ${number.format(total)}`,
    gone: "This output is gone",
    goneAdvice: "It was deleted, or has expired.",
    /** `fit`: how large it is while it fits; where that is not known, how much larger than that. */
    zoom: (scale: number, fit: number | null) => {
      const size =
        fit === null ? (scale === 1 ? "" : `× ${Number(scale.toFixed(1))}`) : `${Math.round(scale * fit * 100)} %`;
      return [scale === 1 && "Fit", size].filter(Boolean).join(" · ");
    },
  },
  info: {
    title: "Info",
    prompt: "Prompt",
    seed: "Seed",
    workflow: "Workflow",
    batch: "Batch",
    item: (at: number) => `no. ${number.format(at)}`,
    made: "Made",
    pixels: "Size",
    length: "Length",
    file: "File",
    type: "Type",
    path: "Path",
    values: "Values",
    noValues: "This job was made without values of its own.",
    note: "Note",
    notePlaceholder: "What do you think of it?",
    noteSaved: "Note saved",
    collections: "Collections",
  },
  compare: {
    title: "Compare",
    sideBySide: "Side by side",
    slider: "Slider",
    how: "How to compare",
    differs: "Differs in",
    same: "All values are the same.",
    needs: "Select two to four outputs to compare them.",
    letters: ["A", "B", "C", "D"],
    together: "Position of all",
    remove: (letter: string) => `Remove ${letter}`,
    seconds: (at: number, length: number) => `${clock(at)} / ${clock(length)}`,
  },
  collections: {
    name: "Collections",
    none: "Gather outputs under a name: for a client, a project, a shortlist.",
    create: "New collection",
    createHint: "What you have selected goes into it.",
    rename: "Rename",
    remove: "Delete collection",
    label: "Name",
    placeholder: "For the client",
    save: "Save",
    make: "Create",
    actions: (name: string) => `Actions for ${isolated(name)}`,
    added: (count: number, name: string) => `${outputs(count)} added to ${isolated(name)}`,
    released: (count: number, name: string) => `${outputs(count)} removed from ${isolated(name)}`,
    removed: (name: string) => `${isolated(name)} is deleted. What was in it is still in the gallery.`,
    removeTitle: (name: string) => `Delete collection ${isolated(name)}?`,
    removeAbout: "The outputs in it stay in the gallery.",
    count: (count: number) => outputs(count),
    all: "All outputs",
    missing: "A collection",
  },
  copying: {
    title: (count: number) => `Copy ${outputs(count)} to a folder`,
    about: "Copies are yours: they stay when a job is deleted.",
    folder: "Folder",
    hint: (root: string) => `Inside ${root}`,
    placeholder: "best of",
    run: "Copy",
    done: (count: number, folder: string, left: number) =>
      `${outputs(count)} copied to ${isolated(folder)}${left ? `, ${number.format(left)} could not be` : ""}`,
  },
  deleting: {
    title: (count: number) => `Delete ${outputs(count)}?`,
    about: (count: number) =>
      count === 1
        ? "The job that made it is deleted with it: its log, its values, and everything else that it made. You can undo this for a few seconds."
        : "The jobs that made them are deleted with them: their logs, their values, and everything else that they made. You can undo this for a few seconds.",
    keep: "Keep the files in the output folder",
    files: "These files are deleted from the output folder:",
    andMore: (count: number) => `and ${number.format(count)} more`,
    run: (count: number) => `Delete ${outputs(count)}`,
    goes: (count: number) => `${outputs(count)} will be deleted`,
    done: (count: number) => `${outputs(count)} deleted`,
    left: (count: number) => `${plural(count, "file")} could not be deleted`,
    refused: (count: number) => `${plural(count, "job")} could not be deleted: still running`,
  },
  zipping: (count: number) => `Your zip with ${outputs(count)} is on its way`,
  copiedPath: "Path copied",
  copiedPrompt: "Prompt copied",
  selectionTooLarge: "selected",
};
