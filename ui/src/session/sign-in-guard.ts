// Redirects visitors without a session to the sign-in page, and back to their page afterwards.

import type { QueryClient } from "@tanstack/react-query";
import { redirect } from "@tanstack/react-router";
import { renewSessionBy } from "@/api/client";
import { Problem } from "@/api/problem";
import { entry, keys, me } from "@/api/queries";
import { requestSignIn } from "./renewal";

const PUBLIC_PAGES = ["/catalogue", "/sign-in", "/sign-up", "/forgot", "/reset", "/confirm", "/setup"] as const;

/** Whether a page needs no session. Public pages are shown without the frame of the app. */
export const isPublicPage = (path: string): boolean =>
  PUBLIC_PAGES.some((each) => path === each || path.startsWith(`${each}/`));

/** The path to open after signing in, or "/" if it is not a page of this app. Prevents open redirects. */
export function localPath(wanted: string | undefined): string {
  try {
    if (!wanted?.startsWith("/")) return "/";
    const { origin, pathname, search } = new URL(wanted, location.origin);
    if (origin !== location.origin || isPublicPage(pathname)) return "/";
    // without its dots, a path may name another host: "/.//host" becomes "//host"
    return new URL(pathname + search, origin).href === origin + pathname + search ? pathname + search : "/";
  } catch {
    return "/";
  }
}

/** Never resolves: the page is about to be replaced. */
function reloadPage(): Promise<never> {
  location.reload();
  return new Promise<never>(() => {});
}

async function renewSession(client: QueryClient): Promise<void> {
  const found = await client.fetchQuery(entry);
  // a desk has its own sign-in page, which the server renders
  return found && !found.is_desk ? requestSignIn() : reloadPage();
}

/** Makes sure that there is a session before a page loads; throws a redirect if there is none. */
export async function requireSession(client: QueryClient, path: string, address: string): Promise<void> {
  if (isPublicPage(path)) {
    renewSessionBy(null);
    return;
  }
  if (!client.getQueryData(keys.me)) {
    try {
      await client.fetchQuery(me);
    } catch (thrown) {
      // pages report other errors themselves
      if (!(thrown instanceof Problem) || thrown.status !== 401) return;
      const found = await client.fetchQuery(entry);
      if (!found || found.is_desk) return reloadPage();
      if (found.needs_setup) throw redirect({ to: "/setup", replace: true });
      if (address === "/" && found.can_sign_up) throw redirect({ to: "/catalogue", replace: true });
      const to = address === "/" ? undefined : address;
      throw redirect({ to: "/sign-in", search: to ? { to } : {}, replace: true });
    }
  }
  renewSessionBy(() => renewSession(client));
}
