import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { TooltipProvider } from "@/kit/Tooltip";
import { setup as texts } from "@/texts/setup";
import { AdministratorStep } from "./AdministratorStep";

vi.mock("@tanstack/react-router", () => ({ Link: () => null }));

afterEach(() => {
  location.hash = "";
});

it("takes the code of a link that is opened in the open tab", async () => {
  render(
    <QueryClientProvider client={new QueryClient()}>
      <TooltipProvider>
        <AdministratorStep />
      </TooltipProvider>
    </QueryClientProvider>,
  );
  const field = screen.getByLabelText(texts.admin.code);
  fireEvent.change(field, { target: { value: "typed" } });
  await act(async () => {
    location.hash = "#AAAAA-BBBBB";
    dispatchEvent(new HashChangeEvent("hashchange"));
  });
  expect((field as HTMLInputElement).value).toBe("AAAAA-BBBBB");
});
