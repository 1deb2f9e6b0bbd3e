// What is shown all over the app. All text that people read stands in this folder, ready to be translated.

const number = new Intl.NumberFormat("en");
const plural = (count: number, one: string, many = `${one}s`) => `${number.format(count)} ${count === 1 ? one : many}`;

const BOTH_WAYS = /[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufeff]/;
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

/** What somebody wrote, for the middle of a sentence: a name that is read from the right turns nothing around it. */
const isolated = (name: string): string => (BOTH_WAYS.test(name) ? `\u2068${name.replace(TURNING, "")}\u2069` : name);

export { isolated, number, plural };

export const common = {
  name: "ComfyRelay",
  areas: {
    create: "Create",
    queue: "Queue",
    gallery: "Gallery",
    studio: "Studio",
    wallet: "Wallet",
    console: "Console",
    job: "Job",
    kit: "Kit",
  },
  skip: "Skip to content",
  mainNavigation: "Areas",
  comfyui: "ComfyUI",
  close: "Close",
  undo: "Undo",
  cancel: "Cancel",
  clear: "Clear",
  retry: "Try again",
  copy: "Copy",
  copied: "Copied",
  notCopied: "It could not be copied: your browser does not allow it here. Select it, and copy it by hand.",
  details: "Details",
  more: "More",
  loading: "Loading",
  search: "Search",
  nothingFound: "Nothing found",
  choose: "Choose…",
  required: "required",
  less: "Less",
  greater: "More",
  problems: {
    away: "ComfyRelay is not responding. Check your connection, and whether it is still running.",
    answered: (status: number) => `The server answered ${status}.`,
    andMore: (count: number) => `(and ${count} more)`,
    tooLarge: (name: string, size: string, most: string) => `${name} is ${size}; the limit is ${most}.`,
    refused: (name: string, why: string) => `${name} cannot be used: ${why}`,
    notUploaded: (name: string, status?: number) =>
      status ? `${name} could not be uploaded: the server answered ${status}.` : `${name} could not be uploaded.`,
    broken: "This part of the page stopped working",
    brokenAdvice: "Your jobs are not affected. Reload the page; what you typed in Create is kept.",
    reload: "Reload",
    notLoaded: "This part of the page could not be loaded",
    notLoadedAdvice: "ComfyRelay may have been updated or stopped. Reload the page to continue.",
    nowhere: "There is no such page",
    nowhereAdvice: "The address may have been mistyped, or what it showed was deleted.",
    back: "Go back",
    home: { desk: "Go to the queue", user: "Go to the studio", admin: "Go to the console" },
  },
  live: {
    connecting: "Connecting…",
    reconnecting: "Connection lost. Reconnecting…",
    offline: "You are offline. What you see may be out of date.",
    polling: "Live updates are slower than usual.",
    back: "Connected again",
  },
  status: {
    queued: "Waiting",
    waiting: "Waiting",
    processing: "Running",
    running: "Running",
    completed: "Done",
    failed: "Failed",
    canceled: "Canceled",
    paused: "Paused",
  } as Readonly<Record<string, string>>,
  theme: {
    name: "Theme",
    system: "System",
    dark: "Dark",
    light: "Light",
    next: (now: string) => `Theme: ${now}`,
  },
  notifications: {
    name: "Notify when a batch or job ends",
    hint: "A message from your browser, even while this tab is in the background.",
    blocked: "Your browser blocks notifications for this page. Allow them in its site settings, then switch this on.",
    missing:
      "This browser cannot show notifications here: they need HTTPS, or a browser on the machine that runs ComfyRelay.",
    ended: (label: string) => `${label} is done`,
    endedSome: (label: string, failed: number) => `${label} ended, ${number.format(failed)} failed`,
    body: (done: number, total: number) => `${number.format(done)} of ${plural(total, "output")} made`,
    unnamed: "Your batch",
  },
  palette: {
    name: "Commands",
    placeholder: "Search pages and commands…",
    empty: "Nothing found. Try another word.",
    go: "Go to",
    page: "This page",
  },
  keys: {
    name: "Keyboard shortcuts",
    hint: "Keys work wherever you are not typing.",
    everywhere: "Everywhere",
    openPalette: "Commands",
    showKeys: "Keyboard shortcuts",
    goTo: (area: string) => `Go to ${area}`,
    after: "then",
    focusSearch: "Search",
    next: "Next",
    previous: "Previous",
    select: "Select",
    create: "Create",
    retry: "Run again",
  },
  settings: "Settings",
  drop: { title: "Drop to use it", hint: "Workflows, pictures, videos, audio or whole folders" },
  selected: (count: number) => `${number.format(count)} selected`,
  clearSelection: "Clear selection",
  media: {
    player: "Player",
    play: "Play",
    pause: "Pause",
    mute: "Mute",
    unmute: "Unmute",
    loop: "Loop",
    back: "One frame back",
    forward: "One frame forward",
    fullscreen: "Full screen",
    position: "Position",
    gone: "This file is gone",
    noPreview: "No preview",
    divider: "Divider between input and output",
  },
};

/** A length of time in words, rounded as people would say it. */
export function duration(seconds: number): string {
  if (seconds < 1) return "under 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) return plural(Math.round(hours / 24), "day");
  return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
}

/** `0:05`, as players write it. */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const tail = String(rest).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${tail}` : `${minutes}:${tail}`;
}

const UNITS = ["B", "KB", "MB", "GB", "TB"];

export function size(bytes: number): string {
  const step = bytes < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log(bytes) / Math.log(1000)));
  const value = bytes / 1000 ** step;
  return `${value >= 100 || step === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[step]}`;
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
];

/** `5 minutes ago`. */
export function ago(at: string, now = Date.now()): string {
  const seconds = (Date.parse(at) - now) / 1000;
  for (const [unit, length] of STEPS) {
    if (Math.abs(seconds) >= length) return relative.format(Math.round(seconds / length), unit);
  }
  return "just now";
}
