// Texts used all over the app. This folder has every user-visible text.

const number = new Intl.NumberFormat("en");
const plural = (count: number, one: string, many = `${one}s`) => `${number.format(count)} ${count === 1 ? one : many}`;

const RTL_OR_CONTROL = /[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufeff]/;
const CONTROLS = /[\u202a-\u202e\u2066-\u2069]/g;

/** Isolates a user-given name, so right-to-left text does not reorder the sentence around it. */
const isolated = (name: string): string =>
  RTL_OR_CONTROL.test(name) ? `\u2068${name.replace(CONTROLS, "")}\u2069` : name;

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
  notCopied: "Your browser blocked copying. Select the text and copy it manually.",
  details: "Details",
  more: "More",
  loading: "Loading",
  search: "Search",
  nothingFound: "No results",
  choose: "Choose…",
  required: "required",
  less: "Less",
  greater: "More",
  problems: {
    unreachable: "ComfyRelay is not responding. Check your connection and that the server is running.",
    answered: (status: number) => `The server responded with ${status}.`,
    andMore: (count: number) => `(and ${count} more)`,
    tooLarge: (name: string, size: string, most: string) => `${name} is ${size}; the limit is ${most}.`,
    refused: (name: string, why: string) => `${name} cannot be used: ${why}`,
    textNotImage: (name: string) => `${name} is a text file, not an image. It may be a saved error page.`,
    notUploaded: (name: string, status?: number) =>
      status ? `Could not upload ${name}: the server responded with ${status}.` : `Could not upload ${name}.`,
    broken: "This part of the page stopped working",
    brokenAdvice: "Your jobs are not affected. Reload the page. Your input in Create is saved.",
    reload: "Reload",
    notLoaded: "Could not load this part of the page",
    notLoadedAdvice: "ComfyRelay may have been updated or stopped. The page reloads when ComfyRelay responds.",
    nowhere: "Page not found",
    nowhereAdvice: "Check the address. The item may also have been deleted.",
    back: "Go back",
    home: { desk: "Go to the queue", user: "Go to the studio", admin: "Go to the console" },
  },
  live: {
    connecting: "Connecting…",
    reconnecting: "Connection lost. Reconnecting…",
    offline: "You are offline. Your jobs continue, and this page updates when you reconnect.",
    polling: "Live updates are delayed.",
    back: "Reconnected",
  },
  pause: {
    name: "The queue is paused",
    mark: "⏸",
    holds: (held: number) =>
      held
        ? `The queue is paused. It holds ${plural(held, "job")}.`
        : "The queue is paused. It holds no jobs yet. New jobs wait until you resume it.",
    resume: "Resume queue",
    paused: "The queue is paused. New jobs wait until you resume it.",
    resumed: "Queue resumed.",
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
  licences: "Third-party licenses",
  notifications: {
    name: "Notify when a job or batch finishes",
    hint: "Shows a browser notification, even while this tab is in the background.",
    blocked: "Your browser blocks notifications for this page. Allow them in the site settings, then turn this on.",
    missing: "Notifications need HTTPS, or a browser on the machine that runs ComfyRelay.",
    ended: (label: string) => `${label} is done`,
    endedSome: (label: string, failed: number) => `${label} finished, ${number.format(failed)} failed`,
    body: (done: number, total: number) => `${number.format(done)} of ${plural(total, "output")} completed`,
    unnamed: "Your batch",
  },
  palette: {
    name: "Commands",
    placeholder: "Search pages and commands…",
    empty: "No results. Try another search.",
    go: "Go to",
    page: "This page",
  },
  keys: {
    name: "Keyboard shortcuts",
    hint: "Shortcuts work while you are not typing.",
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
  drop: { title: "Drop to upload", hint: "Workflows, images, videos, audio or folders" },
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
    gone: "File not found",
    unreachable: "Temporarily unavailable",
    noPreview: "No preview",
    divider: "Divider between input and output",
  },
};

/** A duration, rounded: `90 s`, `12 min`, `3 h 5 min`. */
export function duration(seconds: number): string {
  if (seconds < 1) return "under 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) return plural(Math.round(hours / 24), "day");
  return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
}

/** `0:05` */
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

/** `5 minutes ago` */
export function ago(at: string, now = Date.now()): string {
  const seconds = (Date.parse(at) - now) / 1000;
  for (const [unit, length] of STEPS) {
    if (Math.abs(seconds) >= length) return relative.format(Math.round(seconds / length), unit);
  }
  return "just now";
}
