import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { keys } from "@/api/queries";
import { Popover } from "@/kit";
import { common } from "@/texts/common";
import { desk as texts } from "@/texts/desk";
import { entry } from "@/texts/entry";
import { settings } from "@/texts/settings";
import { isGuestPage } from "./areas";
import { SettingsMenu } from "./SettingsMenu";

function renderMenu(isGuest: boolean) {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  client.setQueryData(keys.me, { id: "1", email: "desk@localhost", is_admin: true });
  client.setQueryData(keys.desk, { is_guest: isGuest, simulated_jobs: "nothing" });
  render(
    <QueryClientProvider client={client}>
      <Popover name="menu" trigger={<button type="button">open</button>}>
        <SettingsMenu onSheet={vi.fn()} />
      </Popover>
    </QueryClientProvider>,
  );
  screen.getByRole("button", { name: "open" }).click();
}

it("a guest sees the limits and how to get more rights, and can sign out", async () => {
  renderMenu(true);
  expect(await screen.findByText(texts.guest.text)).toBeTruthy();
  expect(screen.getByText(texts.guest.command)).toBeTruthy();
  expect(screen.getByRole("button", { name: entry.signOut })).toBeTruthy();
  expect(screen.queryByRole("button", { name: texts.open })).toBeNull();
});

it("the owner of a desk sees its settings and folders, and can sign out", async () => {
  renderMenu(false);
  for (const name of [texts.open, settings.open, settings.phone.open, entry.signOut])
    expect(await screen.findByRole("button", { name })).toBeTruthy();
  expect(screen.getByRole("link", { name: common.licences }).getAttribute("href")).toBe("/licenses.txt");
  expect(screen.queryByText(texts.guest.title)).toBeNull();
});

it("a guest can open only the pages of jobs", () =>
  expect(["/", "/queue", "/jobs/1", "/console", "/wallet", "/studio", "/queues"].map(isGuestPage)).toEqual([
    ...[true, true, true],
    ...[false, false, false, false],
  ]));
