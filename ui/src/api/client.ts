// The API of the server. `get`, `post`, `patch`, `put` and `remove` are typed by its OpenAPI schema.

import { common } from "@/texts/common";
import { parse, stringify } from "./json";
import { takePrefetched } from "./prefetch";
import { Problem, problemOf } from "./problem";
import type { paths } from "./schema";
import { broadcastChange } from "./tabs";

type Method = "get" | "post" | "put" | "patch" | "delete";
type Routes<M extends Method> = {
  [P in keyof paths]: paths[P][M] extends { responses: unknown } ? P : never;
}[keyof paths];

type JsonOf<R> = R extends { content: { "application/json": infer Body } } ? Body : never;
type Good<R> = R extends { 200: infer A; 201: infer B }
  ? JsonOf<A> | JsonOf<B>
  : R extends { 200: infer A }
    ? JsonOf<A>
    : R extends { 201: infer B }
      ? JsonOf<B>
      : never;
/** The `data` of a response. */
export type DataOf<P extends keyof paths, M extends Method> = paths[P][M] extends { responses: infer R }
  ? Good<R> extends { data: infer D }
    ? D
    : unknown
  : never;

type Part<P extends keyof paths, M extends Method, K extends "path" | "query"> = paths[P][M] extends {
  parameters: infer Given;
}
  ? K extends keyof Given
    ? Exclude<Given[K], undefined>
    : never
  : never;
/** Each query parameter may be given as text, because it is sent as text. The server validates it. */
type Query<Q> = { [K in keyof Q]: Q[K] | string };
type Asked<P extends keyof paths, M extends Method> = ([Part<P, M, "path">] extends [never]
  ? unknown
  : { path: Part<P, M, "path"> }) &
  ([Part<P, M, "query">] extends [never] ? unknown : { query?: Query<Part<P, M, "query">> }) & {
    signal?: AbortSignal;
    version?: Version;
  };
/** The body of a request. */
export type BodyOf<P extends keyof paths, M extends Method> = paths[P][M] extends {
  requestBody?: infer B;
}
  ? JsonOf<Exclude<B, undefined>>
  : never;
type Sent<P extends keyof paths, M extends Method> = Asked<P, M> &
  ([BodyOf<P, M>] extends [never] ? unknown : { body?: BodyOf<P, M> });
type Rest<T> = Record<never, never> extends T ? [options?: T] : [options: T];

interface Options {
  path?: Record<string, string | number>;
  query?: Record<string, unknown>;
  body?: unknown;
  signal?: AbortSignal;
  version?: Version;
}

/** The version of an object that the user has seen. The server refuses to change any other version. */
export type Version = string | undefined;

/** The version that the server sent with an object. */
export const etagOf = (data: object): Version => (data as { etag?: string }).etag;

/** A successful response: the data, and a message for the user. */
export interface Answer<T> {
  data: T;
  message?: string | null;
}

let isLeaving = false;
// runs before other listeners, which may send their last requests
for (const kind of ["pagehide", "pageshow"]) {
  addEventListener(
    kind,
    () => {
      isLeaving = kind === "pagehide";
    },
    { capture: true },
  );
}

/** Sends an untyped request. Prefer the typed functions below. */
export async function call<T = unknown>(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
  version?: Version,
): Promise<Answer<T>> {
  let answer: Response;
  let text: string;
  try {
    answer = await ((method === "GET" && takePrefetched(path)) ||
      fetch(path, {
        method,
        headers: {
          ...(body !== undefined && { "Content-Type": "application/json" }),
          ...(version && { "If-Match": version }),
        },
        body: body === undefined ? null : stringify(body),
        signal: signal ?? null,
        // the browser finishes the request after the page is closed
        keepalive: isLeaving,
      }));
    text = await answer.text();
  } catch (thrown) {
    if (signal?.aborted) throw thrown;
    throw new Problem(common.problems.unreachable, 0);
  }
  let found: unknown = {};
  try {
    found = text ? parse(text) : {};
  } catch {
    // not JSON: reported below by its status
  }
  if (answer.ok) {
    if (method !== "GET") broadcastChange(path, body);
    return withVersion(found as Answer<T>, answer.headers.get("ETag"));
  }
  if (answer.status === 401 && renewing && !WITHOUT_SESSION.has(path)) {
    // the server has done nothing yet, so send it again after the sign-in
    await renewing();
    return call<T>(method, path, body, signal, version);
  }
  throw problemOf(found, answer.status);
}

function withVersion<T>(answer: Answer<T>, etag: string | null): Answer<T> {
  return etag && answer.data && typeof answer.data === "object"
    ? { ...answer, data: { ...answer.data, etag } }
    : answer;
}

/** Routes where 401 means wrong credentials, not an expired session. */
const WITHOUT_SESSION: ReadonlySet<string> = new Set(["/api/entry", "/api/login"]);

let renewing: (() => Promise<void>) | null = null;

/** Sets how to get a new session when one expires. Requests wait for it. */
export function renewSessionBy(renew: (() => Promise<void>) | null): void {
  renewing = renew;
}

const typedCall =
  <M extends Method>(method: M) =>
  async <P extends Routes<M>>(path: P, ...rest: Rest<Sent<P, M>>): Promise<Answer<DataOf<P, M>>> => {
    const { path: names = {}, query = {}, body, signal, version } = (rest[0] ?? {}) as Options;
    return call<DataOf<P, M>>(method.toUpperCase(), fillPath(path, names) + queryOf(query), body, signal, version);
  };

/** Sends a GET request and returns its `data`. */
export const get = async <P extends Routes<"get">>(path: P, ...rest: Rest<Sent<P, "get">>): Promise<DataOf<P, "get">> =>
  (await typedCall("get")(path, ...rest)).data;
export const post = typedCall("post");
export const put = typedCall("put");
export const patch = typedCall("patch");
export const remove = typedCall("delete");

function fillPath(path: string, names: Record<string, string | number>): string {
  return path.replace(/\{(\w+)\}/g, (_all, name: string) => encodeURIComponent(String(names[name])));
}

/** `?a=b`, without empty values. */
export function queryOf(query: Record<string, unknown>): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/** A new idempotency key. Pages opened over plain HTTP have no `crypto.randomUUID`. */
export const newKey = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");

const OWN_FILE = /^(?:https?:\/\/[^/?#]*)?(\/files\/[^#]*)/;

/** Makes URLs of this server relative: the page may use another host name than the URLs. */
export const here = (url: string): string => OWN_FILE.exec(url)?.[1] ?? url;
