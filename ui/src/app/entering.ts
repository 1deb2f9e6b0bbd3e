// Who is not signed in is led to where one gets in, and back from there.

import type { QueryClient } from "@tanstack/react-query";
import { redirect } from "@tanstack/react-router";
import { renewSessionBy } from "@/api/client";
import { Problem } from "@/api/problem";
import { entry, keys, me } from "@/api/queries";
import { askForSession } from "./renewal";

const ENTRIES = ["/sign-in", "/sign-up", "/reset", "/setup"] as const;

/** Pages without the frame of the app: nobody need be signed in for them. */
export const isEntry = (path: string): boolean => ENTRIES.some((each) => path === each || path.startsWith(`${each}/`));

/** An address of this app, and nothing else: a link must not lead elsewhere by way of our sign-in. */
export function ownAddress(wanted: string | undefined): string {
  if (!wanted?.startsWith("/")) return "/";
  const { origin, pathname, search } = new URL(wanted, location.origin);
  return origin === location.origin && !isEntry(pathname) ? pathname + search : "/";
}

const forEver = () => new Promise<never>(() => {});

async function loadAnew(): Promise<never> {
  location.reload();
  return forEver();
}

/** On a desk the server's own page says how to get in. */
async function renew(client: QueryClient): Promise<void> {
  const found = await client.fetchQuery(entry);
  return found && !found.is_desk ? askForSession() : loadAnew();
}

export async function letIn(client: QueryClient, path: string, address: string): Promise<void> {
  if (isEntry(path)) {
    renewSessionBy(null);
    return;
  }
  if (!client.getQueryData(keys.me)) {
    try {
      await client.fetchQuery(me);
    } catch (thrown) {
      // what else is wrong is shown where it is needed
      if (!(thrown instanceof Problem) || thrown.status !== 401) return;
      const found = await client.fetchQuery(entry);
      if (!found || found.is_desk) return loadAnew();
      if (found.needs_setup) throw redirect({ to: "/setup", replace: true });
      const to = address === "/" ? undefined : address;
      throw redirect({ to: "/sign-in", search: to ? { to } : {}, replace: true });
    }
  }
  renewSessionBy(() => renew(client));
}
