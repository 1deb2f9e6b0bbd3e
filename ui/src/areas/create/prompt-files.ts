// Text files with prompts: one prompt per line, or blocks separated by lines of `---`, as on the command line.

const MAX_BYTES = 16 * 1024 * 1024;
const SEPARATOR = "---";

export const isPromptFile = (file: File): boolean =>
  file.name.toLowerCase().endsWith(".txt") && (file.type === "" || file.type.startsWith("text/"));

/** The prompts in a text. A prompt of several lines becomes one line. */
export function promptsIn(text: string): string[] {
  const lines = text.split(/\r\n|\r|\n/).map((each) => each.trim());
  if (!lines.includes(SEPARATOR)) return lines.filter(Boolean);
  const blocks: string[][] = [[]];
  for (const line of lines) {
    if (line === SEPARATOR) blocks.push([]);
    else if (line) blocks.at(-1)?.push(line);
  }
  return blocks.map((each) => each.join(" ")).filter(Boolean);
}

/** Null if the file is too large or not text. */
export async function readPrompts(file: File): Promise<string[] | null> {
  if (file.size > MAX_BYTES) return null;
  const bytes = new Uint8Array(await file.arrayBuffer());
  const [first, second] = bytes;
  // Windows editors write byte order marks, and some write UTF-16
  const encoding =
    first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return text.includes("\u0000") ? null : promptsIn(text);
  } catch {
    return null;
  }
}
