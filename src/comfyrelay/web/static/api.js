// The server's API. Errors are thrown as `Problem`, with a sentence that can be shown.

export class Problem extends Error {
  constructor(text, status, errors = {}, kind = "") {
    super(text);
    this.status = status;
    this.errors = errors;
    this.kind = kind; // such as "conflict"
  }
}

// Seeds have 64 bits, more than JavaScript's numbers hold exactly. In JSON such a number is the only thing outside of
// texts with so many digits in a row; on its way it is a text with a mark that no other text has.
const MARK = "\u0000whole:";
const LONG = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;
const MARKED = /"\\u0000whole:(-?\d+)"/g;
const whole = (text) => (Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text));

/** JSON, with numbers that JavaScript would round kept whole. */
export const parse = (text) =>
  JSON.parse(text.replace(LONG, (found) => (found.startsWith('"') ? found : JSON.stringify(MARK + found))), (_key, value) =>
    typeof value === "string" && value.startsWith(MARK) ? whole(value.slice(MARK.length)) : value,
  );

/** The same back. */
export const written = (value) =>
  JSON.stringify(value, (_key, each) => (typeof each === "bigint" ? MARK + each : each)).replace(MARKED, "$1");

export async function call(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : written(body),
    });
  } catch {
    throw new Problem("ComfyRelay is not responding. Is `comfyrelay up` still running?", 0);
  }
  const text = await answer.text();
  let found = {};
  try {
    found = text ? parse(text) : {};
  } catch {
    // shown below, by its status
  }
  if (answer.ok) return found;
  // the session is over: the page itself says how to get another
  if (answer.status === 401) location.reload();
  throw new Problem(sentenceOf(found, answer.status), answer.status, found.errors, found.type?.split(":").pop());
}

function sentenceOf(problem, status) {
  const sentence = problem.detail || problem.title || `The server answered ${status}.`;
  // often the sentence itself is that of the only field
  const errors = Object.entries(problem.errors ?? {}).filter(([, why]) => !sentence.includes(why));
  if (!errors.length) return sentence;
  const first = errors.slice(0, 3).map(([field, why]) => `${field}: ${why}`);
  return `${sentence} ${first.join(" ")}${errors.length > 3 ? ` (and ${errors.length - 3} more)` : ""}`;
}

export const get = async (path, query = {}) => (await call("GET", path + queryOf(query))).data;

/** All pages of a list. */
export async function all(path, query = {}) {
  const found = [];
  let cursor = null;
  do {
    const page = await get(path, { limit: 200, ...query, cursor });
    found.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  return found;
}

export const post = (path, body) => call("POST", path, body);
export const remove = (path) => call("DELETE", path);

function queryOf(query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Once for each thing that is added. Opened from another machine, over plain HTTP, a page has no `crypto.randomUUID`. */
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");

/** The page may have been opened by another name of this machine than the one in URLs. */
export const here = (url) => {
  const { pathname, search } = new URL(url, location.href);
  return pathname.startsWith("/files/") ? pathname + search : url;
};

const TYPES = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", webp: "image/webp", gif: "image/gif", bmp: "image/bmp",
  avif: "image/avif", tif: "image/tiff", tiff: "image/tiff", mp4: "video/mp4", m4v: "video/mp4", mov: "video/quicktime",
  webm: "video/webm", mkv: "video/x-matroska", avi: "video/x-msvideo", mp3: "audio/mpeg", wav: "audio/wav",
  flac: "audio/flac", ogg: "audio/ogg", opus: "audio/ogg", m4a: "audio/mp4",
};

export const typeOf = (file) => file.type || TYPES[file.name.split(".").pop().toLowerCase()] || "";

/** Send a file; its id. */
export async function upload(file) {
  const { data } = await post("/api/videos/uploads", {
    mime_type: typeOf(file),
    size: file.size,
    original_filename: file.name.slice(-255),
  });
  // a browser sets the length itself, and does not let anybody else
  const headers = Object.entries(data.upload_headers).filter(([name]) => name.toLowerCase() !== "content-length");
  let answer;
  try {
    answer = await fetch(here(data.upload_url), { method: "PUT", headers: Object.fromEntries(headers), body: file });
  } catch {
    throw new Problem(`${file.name} could not be uploaded.`, 0);
  }
  if (!answer.ok) throw new Problem(`${file.name} could not be uploaded: the server answered ${answer.status}.`, answer.status);
  return data.file.id;
}
