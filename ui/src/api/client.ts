// The server's API: `get`, `post`, `patch`, `put` and `remove` know its routes by their types, made from its OpenAPI.

import { common } from "@/texts/common";
import { earlyAnswer } from "./early";
import { parse, written } from "./json";
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
/** What a route answers with: its `data`. */
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
type Asked<P extends keyof paths, M extends Method> = ([Part<P, M, "path">] extends [never]
  ? unknown
  : { path: Part<P, M, "path"> }) &
  ([Part<P, M, "query">] extends [never] ? unknown : { query?: Part<P, M, "query"> }) & { signal?: AbortSignal };
/** What is sent to a route. */
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
}

/** A good answer: what was asked for, and a sentence for who asked. */
export interface Answer<T> {
  data: T;
  message?: string | null;
}

/** Ask for anything, by its plain address. Prefer the functions below: they know what the routes are. */
export async function call<T = unknown>(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<Answer<T>> {
  let answer: Response;
  let text: string;
  try {
    answer = await ((method === "GET" && earlyAnswer(path)) ||
      fetch(path, {
        method,
        headers: body === undefined ? {} : { "Content-Type": "application/json" },
        body: body === undefined ? null : written(body),
        signal: signal ?? null,
      }));
    text = await answer.text();
  } catch (thrown) {
    if (signal?.aborted) throw thrown;
    throw new Problem(common.problems.away, 0);
  }
  let found: unknown = {};
  try {
    found = text ? parse(text) : {};
  } catch {
    // shown below, by its status
  }
  if (answer.ok) {
    if (method !== "GET") broadcastChange(path, body);
    return found as Answer<T>;
  }
  if (answer.status === 401 && renewing && !WITHOUT_SESSION.has(path)) {
    // nothing was done yet: it is asked for once more as soon as there is a session again
    await renewing();
    return call<T>(method, path, body, signal);
  }
  throw problemOf(found, answer.status);
}

/** Here 401 says that what was sent is wrong, and not that a session is over. */
const WITHOUT_SESSION: ReadonlySet<string> = new Set(["/api/entry", "/api/login"]);

let renewing: (() => Promise<void>) | null = null;

/** Says how to get a new session where one is over; whoever asked for something waits for it. */
export function renewSessionBy(renew: (() => Promise<void>) | null): void {
  renewing = renew;
}

const asking =
  <M extends Method>(method: M) =>
  async <P extends Routes<M>>(path: P, ...rest: Rest<Sent<P, M>>): Promise<Answer<DataOf<P, M>>> => {
    const { path: names = {}, query = {}, body, signal } = (rest[0] ?? {}) as Options;
    return call<DataOf<P, M>>(method.toUpperCase(), filled(path, names) + queryOf(query), body, signal);
  };

/** The `data` of a GET. */
export const get = async <P extends Routes<"get">>(path: P, ...rest: Rest<Sent<P, "get">>): Promise<DataOf<P, "get">> =>
  (await asking("get")(path, ...rest)).data;
export const post = asking("post");
export const put = asking("put");
export const patch = asking("patch");
export const remove = asking("delete");

function filled(path: string, names: Record<string, string | number>): string {
  return path.replace(/\{(\w+)\}/g, (_all, name: string) => encodeURIComponent(String(names[name])));
}

/** `?a=b`, without what is not given. */
export function queryOf(query: Record<string, unknown>): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/** Once for each thing that is added. Opened over plain HTTP from another machine, a page has no `crypto.randomUUID`. */
export const newKey = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");

const OWN_FILE = /^(?:https?:\/\/[^/?#]*)?(\/files\/[^#]*)/;

/** The page may have been opened by another name of this machine than the one in URLs. */
export const here = (url: string): string => OWN_FILE.exec(url)?.[1] ?? url;
