import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Filters } from "./Filters";
import { type GalleryQuery, NO_FILTER, parseGalleryQuery } from "./queries";

beforeEach(() => vi.stubGlobal("fetch", () => new Promise(() => undefined)));
afterEach(() => vi.unstubAllGlobals());

function show(query: GalleryQuery) {
  const onChange = vi.fn();
  render(
    <QueryClientProvider client={new QueryClient()}>
      <Filters query={query} batchName="storm" onChange={onChange} />
    </QueryClientProvider>,
  );
  return { onChange, click: (name: string) => fireEvent.click(screen.getByRole("button", { name })) };
}

describe("the gallery filters", () => {
  it("set and clear a mark", () => {
    const { onChange, click } = show({});
    click("Starred");
    expect(onChange).toHaveBeenLastCalledWith({ mark: "starred" });
  });

  it("clear a filter that is set", () => {
    const { onChange, click } = show({ kind: "video", batch: "7" });
    click("Videos");
    expect(onChange).toHaveBeenLastCalledWith({ kind: "" });
    click("Remove filter Batch: storm");
    expect(onChange).toHaveBeenLastCalledWith({ batch: "" });
    click("All");
    expect(onChange).toHaveBeenLastCalledWith(NO_FILTER);
  });
});

it("drops unknown values of the URL", () => {
  const search = { q: "cat", kind: "hologram", mark: "starred", by: "mood", sort: "oldest" };
  expect(parseGalleryQuery(search)).toEqual({ q: "cat", mark: "starred", sort: "oldest" });
});
