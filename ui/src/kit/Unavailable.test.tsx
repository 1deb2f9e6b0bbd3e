import { render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { common } from "@/texts/common";
import { Unavailable } from "./Unavailable";

const { media } = common;

afterEach(() => vi.unstubAllGlobals());

it.each([
  [404, media.gone],
  [503, media.unreachable],
  [206, media.noPreview],
])("says why a file cannot be shown (%s)", async (status, text) => {
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(null, { status })));
  render(<Unavailable kind="image" url="/files/a" />);
  expect(await screen.findByText(text)).toBeTruthy();
});

it("does not call a file lost while the storage does not respond", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("network")));
  render(<Unavailable kind="video" url="/files/a" />);
  expect(await screen.findByText(media.unreachable)).toBeTruthy();
  expect(screen.queryByText(media.gone)).toBeNull();
});
