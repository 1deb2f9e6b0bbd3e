import type { QueryClient } from "@tanstack/react-query";
import { createRootRouteWithContext, createRoute, createRouter, notFound, redirect } from "@tanstack/react-router";
import { counts, desk, me } from "@/api/queries";
import { LoadingPage } from "@/kit/LoadingPage";
import { gallerySearchFields, parseSearch, searchFields, stringifySearch } from "@/lib/search-params";
import { NotFoundPage } from "@/session/NotFoundPage";
import { requireSession } from "@/session/sign-in-guard";
import { CrashPage } from "./CrashPage";
import { lazyPage } from "./lazy-page";
import { Root } from "./Root";

const root = createRootRouteWithContext<{ client: QueryClient }>()({
  beforeLoad: ({ context, location }) => requireSession(context.client, location.pathname, location.href),
  component: Root,
  notFoundComponent: NotFoundPage,
});

const start = createRoute({
  getParentRoute: () => root,
  path: "/",
  // a desk opens the queue, or Create if there are no jobs yet
  beforeLoad: async ({ context }) => {
    if ((await context.client.ensureQueryData(desk).catch(() => null)) === null) {
      const user = await context.client.ensureQueryData(me);
      throw redirect({ to: user.is_admin ? "/console" : "/studio", replace: true });
    }
    const found = await context.client.ensureQueryData(counts).catch(() => null);
    const isNew = found !== null && Object.values(found.counts).every((each) => each === 0);
    throw redirect({ to: isNew ? "/create" : "/queue", replace: true });
  },
});

const create = createRoute({
  getParentRoute: () => root,
  path: "/create",
  validateSearch: searchFields("workflow", "preset", "from", "input", "q", "open", "compare"),
  component: lazyPage(() => import("@/areas/create")),
});

const queue = createRoute({
  getParentRoute: () => root,
  path: "/queue",
  validateSearch: searchFields("status", "workflow", "batch", "q", "sort", "job", "sel"),
  component: lazyPage(() => import("@/areas/queue")),
});

const gallery = createRoute({
  getParentRoute: () => root,
  path: "/gallery",
  validateSearch: gallerySearchFields,
  component: lazyPage(() => import("@/areas/gallery")),
});

const job = createRoute({
  getParentRoute: () => root,
  path: "/jobs/$id",
  component: lazyPage(() => import("@/areas/job")),
});

const studio = createRoute({
  getParentRoute: () => root,
  path: "/studio",
  validateSearch: searchFields("q"),
  component: lazyPage(() => import("@/areas/studio")),
});

const studioPages = [
  createRoute({
    getParentRoute: () => root,
    path: "/studio/effects/$slug",
    component: lazyPage(() => import("@/areas/studio/effect")),
  }),
  createRoute({
    getParentRoute: () => root,
    path: "/studio/videos",
    validateSearch: searchFields("status", "q"),
    component: lazyPage(() => import("@/areas/studio/videos")),
  }),
  createRoute({
    getParentRoute: () => root,
    path: "/studio/videos/$id",
    component: lazyPage(() => import("@/areas/studio/video")),
  }),
] as const;

const wallet = createRoute({
  getParentRoute: () => root,
  path: "/wallet",
  validateSearch: searchFields("tab", "status"),
  component: lazyPage(() => import("@/areas/wallet")),
});

const console = createRoute({
  getParentRoute: () => root,
  path: "/console",
  // other users get "not found"
  beforeLoad: async ({ context }) => {
    if (!(await context.client.ensureQueryData(me)).is_admin) throw notFound();
  },
  component: lazyPage(() => import("@/areas/console")),
});

// The filters and the open entry of a list are in the URL.
const consoleSearch = searchFields(
  ...(["q", "status", "stage", "fleet", "workflow", "tenant", "worker"] as const),
  ...(["effect", "user", "from", "to"] as const),
  ...(["range", "sort", "open", "tab"] as const),
);

const consolePages = [
  createRoute({
    getParentRoute: () => console,
    path: "/",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/overview")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/workers",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/workers")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/workers/$id",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/worker")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/fleets",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/fleets")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/fleets/$stage/$slug",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/fleet")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/dispatches",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/dispatches")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/workflows",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/workflows")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/workflows/$slug",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/workflow")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/effects",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/effects")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/effects/$slug",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/effect")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/tenants",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/tenants")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/tenants/$id",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/tenant")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/payments",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/payments")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/webhooks",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/webhooks")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/reconcile",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/reconcile")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/audit",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/audit")),
  }),
  createRoute({
    getParentRoute: () => console,
    path: "/settings",
    validateSearch: consoleSearch,
    component: lazyPage(() => import("@/areas/console/settings")),
  }),
] as const;

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  validateSearch: searchFields("to"),
  component: lazyPage(() => import("@/areas/entry/sign-in")),
});

const signUp = createRoute({
  getParentRoute: () => root,
  path: "/sign-up",
  validateSearch: searchFields("to"),
  component: lazyPage(() => import("@/areas/entry/sign-up")),
});

const catalogue = createRoute({
  getParentRoute: () => root,
  path: "/catalogue",
  validateSearch: searchFields("q"),
  component: lazyPage(() => import("@/areas/entry/catalogue")),
});

const reset = createRoute({
  getParentRoute: () => root,
  path: "/reset",
  validateSearch: searchFields("to"),
  component: lazyPage(() => import("@/areas/entry/reset")),
});

const forgot = createRoute({
  getParentRoute: () => root,
  path: "/forgot",
  component: lazyPage(() => import("@/areas/entry/forgot")),
});

const confirm = createRoute({
  getParentRoute: () => root,
  path: "/confirm",
  component: lazyPage(() => import("@/areas/entry/confirm")),
});

const setup = createRoute({
  getParentRoute: () => root,
  path: "/setup",
  validateSearch: searchFields("step"),
  component: lazyPage(() => import("@/areas/setup")),
});

const kit = createRoute({
  getParentRoute: () => root,
  path: "/kit",
  component: lazyPage(() => import("@/areas/kit")),
});

export const makeRouter = (client: QueryClient) =>
  createRouter({
    routeTree: root.addChildren([
      start,
      ...studioPages,
      ...[studio, create, queue, gallery, job, wallet, console.addChildren(consolePages), kit],
      ...[catalogue, signIn, signUp, forgot, reset, confirm, setup],
    ]),
    context: { client },
    parseSearch,
    stringifySearch: stringifySearch,
    defaultPreload: "intent",
    defaultPendingComponent: LoadingPage,
    defaultErrorComponent: CrashPage,
    scrollRestoration: false,
  });

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof makeRouter>;
  }
}
