// How statuses, times and sizes are put into words. The API has its own words for statuses; pages have these.

export const STATUS = {
  queued: "pending",
  processing: "running",
  completed: "succeeded",
  failed: "failed",
  canceled: "canceled",
  paused: "paused",
};

export const ENDED = new Set(["completed", "failed", "canceled"]);

export const many = (count, one, more = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : more}`;

export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (seconds > 0 && seconds < 0.5) return "< 1 s";
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole < 600 && whole % 60 ? ` ${whole % 60} s` : ""}`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

export const since = (moment, until) => Math.max(0, ((until ? new Date(until) : new Date()) - new Date(moment)) / 1000);

export function ago(moment) {
  const seconds = since(moment);
  return seconds < 5 ? "just now" : `${span(seconds < 60 ? seconds : seconds - (seconds % 60))} ago`;
}

export function when(moment) {
  return moment ? new Date(moment).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" }) : "";
}

export function size(count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(0)} KB`;
  return count < 1e9 ? `${(count / 1e6).toFixed(1)} MB` : `${(count / 1e9).toFixed(1)} GB`;
}

/** When it began to run, where the worker said so: it may have been fetched long before that. */
export const beganAt = (job) => job.progress?.began_at ?? job.started_at;

/** How far a running job is: part from 0 to 1 or null, and the words beside the bar. */
export function progressOf(job) {
  const progress = job.progress ?? {};
  const part = typeof progress.value === "number" ? Math.min(1, Math.max(0, progress.value)) : null;
  const words = [];
  if (progress.node) words.push(String(progress.node));
  if (progress.steps) words.push(`step ${Math.round(progress.step ?? 0)} of ${Math.round(progress.steps)}`);
  if (!words.length && progress.phase) words.push(String(progress.phase));
  // before that much is done, the guess would jump about
  const began = beganAt(job);
  if (part !== null && part >= 0.05 && part < 1 && began) {
    words.push(`about ${span((since(began) * (1 - part)) / part)} left`);
  }
  return { part, words: words.join(" · ") };
}

/** The whole of what a program said, in lines; workers wrap it in JSON, sometimes twice. */
export function unfold(text) {
  const found = parsed(text);
  if (found === null) return text;
  if (typeof found.raw === "string") return unfold(found.raw);
  const { traceback, exception_type: type, exception_message: message, ...rest } = found;
  const lines = Array.isArray(traceback) ? `${type}: ${message}\n${traceback.join("")}\n` : "";
  return lines + JSON.stringify(lines ? rest : found, null, 2);
}

/** The sentence in it. */
export const sentence = (text) => parsed(text)?.error_message ?? text;

function parsed(text) {
  try {
    const found = JSON.parse(text);
    return found !== null && typeof found === "object" ? found : null;
  } catch {
    return null;
  }
}

/** One word for a batch, from its items. */
export function batchStatus({ counts }) {
  if (counts.processing) return "processing";
  if (counts.queued) return "queued";
  if (counts.paused) return "paused";
  if (counts.failed) return "failed";
  return counts.canceled ? "canceled" : "completed";
}
