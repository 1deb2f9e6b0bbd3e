// What an area asks for first is asked for while its scripts are on their way. Each answer is given once, and soon:
// later it would be old.

/** As many as one sees at first. */
export const QUEUE_LIMIT = 50;
export const GALLERY_LIMIT = 50;
export const CHOICES_LIMIT = 200;

const SOON_MS = 10_000;
const answers = new Map<string, Promise<Response>>();

/** Addresses as the queries write them; only what a desk and a server have for everybody. */
export function firstAsked(path: string, search: string, zone: string): string[] {
  // who is only about to come in is not known yet
  if (/^\/(sign-in|sign-up|reset|setup)(\/|$)/.test(path)) return [];
  const queue = [`/api/queue?limit=${QUEUE_LIMIT}`];
  const tz = new URLSearchParams({ tz: zone });
  const areas: Readonly<Record<string, string[]>> = {
    "/": queue,
    "/queue": queue,
    "/gallery": [`/api/gallery/index?${tz}&by=day`, `/api/gallery?${tz}&limit=${GALLERY_LIMIT}`],
    "/create": [`/api/workflows?limit=${CHOICES_LIMIT}`, `/api/effects?limit=${CHOICES_LIMIT}`],
  };
  // an address with words in it asks for something else
  return ["/api/me", "/api/queue/counts", ...((!search && areas[path]) || [])];
}

export function askEarly(paths: readonly string[]): void {
  for (const path of paths) {
    const answer = read(path);
    // whoever takes it hears that it went wrong
    answer.catch(() => undefined);
    answers.set(path, answer);
  }
}

/** To the end, whether somebody takes it or not: an answer that nobody reads keeps its connection. */
async function read(path: string): Promise<Response> {
  const answer = await fetch(path);
  return new Response(await answer.blob(), { status: answer.status, headers: answer.headers });
}

export function earlyAnswer(path: string): Promise<Response> | undefined {
  const found = performance.now() < SOON_MS ? answers.get(path) : undefined;
  answers.delete(path);
  // somebody may have signed in since
  return found?.then((answer) => (answer.status === 401 ? fetch(path) : answer));
}
