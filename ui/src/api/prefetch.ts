// Sends the first requests of a page while its scripts still load. Each response is used once and only for a short time.

export const QUEUE_LIMIT = 50;
export const GALLERY_LIMIT = 50;
export const CHOICES_LIMIT = 200;

const VALID_MS = 10_000;
const responses = new Map<string, Promise<Response>>();

/** The requests of a page, exactly as its queries send them. Only routes that every user of a desk or server has. */
export function prefetchPaths(path: string, search: string, zone: string): string[] {
  // public pages have no session
  if (/^\/(sign-in|sign-up|reset|setup)(\/|$)/.test(path)) return [];
  const queue = [`/api/queue?limit=${QUEUE_LIMIT}`];
  const tz = new URLSearchParams({ tz: zone });
  const areas: Readonly<Record<string, string[]>> = {
    "/": queue,
    "/queue": queue,
    "/gallery": [`/api/gallery/index?${tz}&by=day`, `/api/gallery?${tz}&limit=${GALLERY_LIMIT}`],
    "/create": [`/api/workflows?limit=${CHOICES_LIMIT}`, `/api/effects?limit=${CHOICES_LIMIT}`],
  };
  // with search parameters, the page sends other requests
  return ["/api/me", "/api/entry", "/api/queue/counts", ...((!search && areas[path]) || [])];
}

export function prefetch(paths: readonly string[]): void {
  for (const path of paths) {
    const response = read(path);
    // the query that uses it reports the error
    response.catch(() => undefined);
    responses.set(path, response);
  }
}

/** Reads the whole body: an unread response would keep its connection open. */
async function read(path: string): Promise<Response> {
  const response = await fetch(path);
  return new Response(await response.blob(), { status: response.status, headers: response.headers });
}

export function takePrefetched(path: string): Promise<Response> | undefined {
  const found = performance.now() < VALID_MS ? responses.get(path) : undefined;
  responses.delete(path);
  // the user may have signed in since
  return found?.then((response) => (response.status === 401 ? fetch(path) : response));
}
