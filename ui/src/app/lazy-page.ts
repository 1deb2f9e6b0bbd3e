import { lazyRouteComponent } from "@tanstack/react-router";
import type { ComponentType } from "react";
import { sentence } from "@/api/problem";
import { common } from "@/texts/common";

/** The scripts of a page could not be loaded. */
export class PageNotLoaded extends Error {}

/** A page that is loaded when it is opened. The router would reload the browser's page if that fails, and leave the user
 * without a page while the server is down. `CrashPage` waits for the server instead. */
export const lazyPage = (load: () => Promise<unknown>) =>
  lazyRouteComponent(async () => {
    try {
      // the type of a page depends on that of the router, which depends on this function
      return (await load()) as { default: ComponentType };
    } catch (thrown) {
      throw new PageNotLoaded(`${common.problems.notLoaded}: ${sentence(thrown)}`);
    }
  });
