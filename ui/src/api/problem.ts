import { common } from "@/texts/common";

/** A node or model that no worker has. */
export interface Missing {
  kind: string;
  name: string;
  workers: number;
  on: string[];
  /** Where the author of the workflow gets a model. */
  source?: string | null;
}

/** An error with a message for the user. `status` is 0 if the server was unreachable. */
export class Problem extends Error {
  constructor(
    text: string,
    readonly status: number,
    readonly errors: Readonly<Record<string, string>> = {},
    /** such as "conflict" */
    readonly kind = "",
    readonly missing: readonly Missing[] = [],
    /** the user's workflow that already has the name */
    readonly workflowSlug = "",
    /** the price that the server asks for */
    readonly requiredTokens: number | null = null,
  ) {
    super(text);
  }

  get isAway(): boolean {
    return this.status === 0;
  }

  /** Whether the server is unreachable, or a proxy answers for it. */
  get isDown(): boolean {
    return this.isAway || this.status >= 500;
  }
}

interface ProblemBody {
  type?: string;
  title?: string;
  detail?: string;
  errors?: Record<string, string>;
  missing?: Missing[];
  workflow_slug?: string;
  required_tokens?: number;
}

const MAX_ERRORS = 3;

export function problemOf(found: unknown, status: number): Problem {
  const body: ProblemBody = typeof found === "object" && found !== null ? found : {};
  const kind = body.type?.split(":").pop();
  const { errors, missing, workflow_slug, required_tokens } = body;
  return new Problem(sentenceOf(body, status), status, errors, kind, missing, workflow_slug, required_tokens);
}

function sentenceOf({ detail, title, errors = {} }: ProblemBody, status: number): string {
  const sentence = detail || title || common.problems.answered(status);
  // the sentence often repeats the error of the only field
  const others = Object.entries(errors).filter(([, why]) => !sentence.includes(why));
  if (!others.length) return sentence;
  const first = others.slice(0, MAX_ERRORS).map(([field, why]) => `${field}: ${why}`);
  const more = others.length > MAX_ERRORS ? ` ${common.problems.andMore(others.length - MAX_ERRORS)}` : "";
  return `${sentence} ${first.join(" ")}${more}`;
}

/** The message of a thrown value. */
export const sentence = (thrown: unknown): string => (thrown instanceof Error ? thrown.message : String(thrown));
