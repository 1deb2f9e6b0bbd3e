import { clock, common, isolated, number, plural } from "./common";

const dayAndMonth = new Intl.DateTimeFormat("en", { weekday: "long", day: "numeric", month: "long" });
const withYear = new Intl.DateTimeFormat("en", { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const moment = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

/** `Today`, `Yesterday` or the date. */
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
    prompt: "No prompt",
  } as Readonly<Record<string, string>>,
  empty: "No outputs yet",
  emptyAdvice:
    "Images, videos, audio and text from your jobs appear here, newest first. Star your favorites, compare versions side by side and download them.",
  emptyAction: "Create",
  emptyCollection: "This collection is empty",
  emptyCollectionAdvice: "Select outputs in the gallery, then choose Collection in the selection bar.",
  noMatch: "No matching outputs",
  noMatchAdvice: "Remove a filter or use fewer search words.",
  showAll: "Clear filters",
  cut: (shown: number, total: number) =>
    `Showing the first ${number.format(shown)} of ${outputs(total)}. Use filters to find more.`,
  fresh: (count: number) => `${number.format(count)} new`,
  toTop: "Back to top",
  filters: {
    all: "All",
    starred: "Starred",
    rejected: "Rejected",
    unmarked: "Unmarked",
    more: "More",
    image: "Images",
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
    still: "image",
    length: clock,
    unnamed: "Output",
  },
  kinds: { image: "image", video: "video", audio: "audio", text: "text", other: "file" } as Readonly<
    Record<string, string>
  >,
  verbs: {
    open: "Open",
    star: "Star",
    unstar: "Remove star",
    reject: "Reject",
    unreject: "Remove rejection",
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
    sameBatch: "Show batch",
    collection: "Collection",
    addTo: "Add to collection",
    release: "Remove from collection",
    delete: "Delete",
    selectAll: "Select all matching",
    all: (total: number) => `All ${number.format(total)}`,
    select: "Select",
    deselect: "Deselect",
    extend: "Select up to here",
    more: "More",
    undo: "Undo",
  },
  keys: {
    next: "Next",
    previous: "Previous",
    left: "Left",
    right: "Right",
    above: "Up",
    below: "Down",
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
    gone: "Output not found",
    goneAdvice: "It was deleted or has expired.",
    /** `fit`: scale at which the output fits its pane; null if unknown. */
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
    made: "Created",
    pixels: "Size",
    length: "Length",
    file: "File",
    type: "Type",
    path: "Path",
    values: "Values",
    noValues: "This job used the workflow defaults.",
    note: "Note",
    notePlaceholder: "Add a note",
    noteSaved: "Note saved",
    collections: "Collections",
  },
  compare: {
    title: "Compare",
    sideBySide: "Side by side",
    slider: "Slider",
    how: "Compare mode",
    differs: "Differences",
    same: "All values are identical.",
    needs: "Select two to four outputs to compare them.",
    letters: ["A", "B", "C", "D"],
    together: "Playback position",
    remove: (letter: string) => `Remove ${letter}`,
    seconds: (at: number, length: number) => `${clock(at)} / ${clock(length)}`,
  },
  collections: {
    name: "Collections",
    none: "Group outputs by client, project or shortlist.",
    create: "New collection",
    createHint: "The selected outputs are added to it.",
    rename: "Rename",
    remove: "Delete collection",
    label: "Name",
    placeholder: "Client review",
    save: "Save",
    make: "Create",
    actions: (name: string) => `Actions for ${isolated(name)}`,
    added: (count: number, name: string) => `${outputs(count)} added to ${isolated(name)}`,
    released: (count: number, name: string) => `${outputs(count)} removed from ${isolated(name)}`,
    removed: (name: string) => `Deleted ${isolated(name)}. Its outputs are still in the gallery.`,
    removeTitle: (name: string) => `Delete collection ${isolated(name)}?`,
    removeAbout: "Its outputs stay in the gallery.",
    count: (count: number) => outputs(count),
    all: "All outputs",
    missing: "Collection",
  },
  copying: {
    title: (count: number) => `Copy ${outputs(count)} to a folder`,
    about: "Copies are kept when the job is deleted.",
    folder: "Folder",
    hint: (root: string) => `Inside ${root}`,
    placeholder: "best of",
    run: "Copy",
    done: (count: number, folder: string, left: number) =>
      `${outputs(count)} copied to ${isolated(folder)}${left ? `, ${number.format(left)} failed` : ""}`,
  },
  deleting: {
    title: (count: number) => `Delete ${outputs(count)}?`,
    about: (count: number) =>
      count === 1
        ? "This also deletes its job with log, values and other outputs. You can undo this for a few seconds."
        : "This also deletes their jobs with logs, values and other outputs. You can undo this for a few seconds.",
    keep: "Keep the files in the output folder",
    files: "Deletes these files from the output folder:",
    andMore: (count: number) => `and ${number.format(count)} more`,
    run: (count: number) => `Delete ${outputs(count)}`,
    pending: (count: number) => `${outputs(count)} will be deleted`,
    done: (count: number) => `${outputs(count)} deleted`,
    notDeleted: (count: number) => `Could not delete ${plural(count, "file")}`,
    refused: (count: number) => `Could not delete ${plural(count, "job")}: still running`,
  },
  zipping: (count: number) => `Downloading a zip with ${outputs(count)}`,
  copiedPath: "Path copied",
  copiedPrompt: "Prompt copied",
  selectionTooLarge: "selected",
};
