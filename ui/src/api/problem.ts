import { common } from "@/texts/common";

/** What one item of `missing` says: a node or a model that no worker has. */
export interface Missing {
  kind: string;
  name: string;
  workers: number;
  on: string[];
}

/** Why something did not work, as a sentence that can be shown. `status` is 0 where the server was not reached. */
export class Problem extends Error {
  constructor(
    text: string,
    readonly status: number,
    readonly errors: Readonly<Record<string, string>> = {},
    /** such as "conflict" */
    readonly kind = "",
    readonly missing: readonly Missing[] = [],
  ) {
    super(text);
  }

  get isAway(): boolean {
    return this.status === 0;
  }
}

interface ProblemBody {
  type?: string;
  title?: string;
  detail?: string;
  errors?: Record<string, string>;
  missing?: Missing[];
}

const MOST_SHOWN = 3;

export function problemOf(found: unknown, status: number): Problem {
  const body: ProblemBody = typeof found === "object" && found !== null ? found : {};
  return new Problem(sentenceOf(body, status), status, body.errors, body.type?.split(":").pop(), body.missing);
}

function sentenceOf({ detail, title, errors = {} }: ProblemBody, status: number): string {
  const sentence = detail || title || common.problems.answered(status);
  // often the sentence itself is that of the only field
  const others = Object.entries(errors).filter(([, why]) => !sentence.includes(why));
  if (!others.length) return sentence;
  const first = others.slice(0, MOST_SHOWN).map(([field, why]) => `${field}: ${why}`);
  const more = others.length > MOST_SHOWN ? ` ${common.problems.andMore(others.length - MOST_SHOWN)}` : "";
  return `${sentence} ${first.join(" ")}${more}`;
}

/** The sentence of whatever was thrown. */
export const sentence = (thrown: unknown): string => (thrown instanceof Error ? thrown.message : String(thrown));
