import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { beforeEach, expect, it, vi } from "vitest";
import { keys } from "@/api/queries";
import type { Job } from "@/api/types";
import type { Item } from "@/areas/gallery/item";
import { items } from "@/areas/gallery/item-store";
import { LightboxActions } from "@/areas/gallery/LightboxActions";
import { SelectionBar } from "@/areas/gallery/SelectionBar";
import { useActions } from "@/areas/gallery/use-actions";
import { useGalleryKeys } from "@/areas/gallery/use-gallery-keys";
import { useItemMenu } from "@/areas/gallery/use-item-menu";
import JobPage from "@/areas/job";
import { keyboard } from "@/lib/keyboard";
import { gallery as texts } from "@/texts/gallery";
import { Results } from "./Results";

vi.mock("@tanstack/react-router", () => ({
  Link: ({ children }: { children: ReactNode }) => <a href="/">{children}</a>,
  useNavigate: () => vi.fn(),
  useParams: () => ({ id: "j1" }),
  useRouter: () => ({}),
  useSearch: () => ({}),
}));
// the buttons and keys matter here
vi.mock("@/jobs/JobFacts", () => ({ JobFacts: () => null }));
vi.mock("@/jobs/JobHistory", () => ({ JobHistory: () => null }));
vi.mock("@/jobs/JobLog", () => ({ JobLog: () => null }));
vi.mock("@/jobs/JobProgress", () => ({ JobProgress: () => null }));
vi.mock("@/jobs/Viewer", () => ({ Viewer: () => null }));

const item = { id: "o1", job_id: "j1", filename: "a.png", mime_type: "image/png", url: "/a.png" } as unknown as Item;
const job = { id: "j1", status: "completed", workflow_slug: "painter", outputs: [] } as unknown as Job;
const ignore = vi.fn();

beforeEach(() => {
  const observer = class {
    observe() {}
    disconnect() {}
  };
  vi.stubGlobal("ResizeObserver", observer);
  vi.stubGlobal("IntersectionObserver", observer);
  // responses never arrive: everything shown comes from the cache
  vi.stubGlobal("fetch", () => new Promise(() => undefined));
  items.put([item]);
});

function renderOn(desk: { is_guest: boolean } | null, children: ReactNode): void {
  const client = new QueryClient({
    defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY, retry: false } },
  });
  client.setQueryData(keys.me, { id: "1", email: "ada@example.com", is_admin: false });
  client.setQueryData(keys.desk, desk);
  client.setQueryData(["job", "j1"], job);
  client.setQueryData(["job", "j1", "about"], null);
  render(
    <QueryClientProvider client={client}>
      <Tooltip.Provider>{children}</Tooltip.Provider>
    </QueryClientProvider>,
  );
}

function GalleryParts({ openId }: { openId?: string }) {
  const actions = useActions();
  const on = { onMove: ignore, onJump: ignore, onCheck: ignore, onSelectAll: ignore, onClear: ignore };
  const asked = {
    onCompare: ignore,
    onAsk: ignore,
    onDialog: ignore,
    onChange: ignore,
    onSelect: ignore,
    onAll: ignore,
  };
  const menu = useItemMenu(["o1"], { actions, ...asked });
  const shown = { isComparing: false, current: "o1", order: ["o1"], selectedIds: [], targets: ["o1"] };
  useGalleryKeys({ ...shown, ...on, ...asked, openId, actions });
  return (
    <>
      <LightboxActions id="o1" actions={actions} menu={menu} />
      <SelectionBar ids={["o1"]} total={1} collection={undefined} actions={actions} {...on} {...asked} />
      {menu.flat().map((each) => (
        <button key={each.name} type="button">
          {each.name}
        </button>
      ))}
    </>
  );
}

const FOUND = { isLoaded: true, running: [], alsoRunning: 0, waiting: 0, waitingText: null, total: 1 };
const PARTS: [name: string, part: ReactNode, buttons: number][] = [
  ["the gallery", <GalleryParts key="grid" />, 3],
  ["the lightbox", <GalleryParts key="open" openId="o1" />, 3],
  [
    "Create",
    <Results
      key="results"
      workflow="painter"
      found={{ ...FOUND, results: [{ kind: "output", item }], order: ["o1"] }}
      view="results"
      onRecall={ignore}
      onPrompt={ignore}
    />,
    1,
  ],
  ["the page of a job", <JobPage key="job" />, 1],
];

it.each(PARTS)("%s offers to change and run a job only on a desk", (_name, part, buttons) => {
  const offers = () => [
    screen.queryAllByRole("button", { name: texts.verbs.recall }).length,
    keyboard.all().filter((each) => each.name === texts.verbs.recall).length,
  ];
  renderOn(null, part);
  expect(offers()).toEqual([0, 0]);
  cleanup();
  renderOn({ is_guest: false }, part);
  expect(offers()).toEqual([buttons, 1]);
});
