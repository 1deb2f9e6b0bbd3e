import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import type { ReactNode } from "react";
import { expect, it, vi } from "vitest";
import { entry, publicEffects } from "@/api/queries";
import { TooltipProvider } from "@/kit/Tooltip";
import { entry as texts } from "@/texts/entry";
import Catalogue from "./catalogue";

vi.mock("@tanstack/react-router", () => ({
  Link: ({ children }: { children: ReactNode }) => <div>{children}</div>,
  Navigate: () => null,
  useNavigate: () => vi.fn(),
  useSearch: () => ({}),
}));

it.each([
  ["open", true],
  ["invitation", false],
  ["closed", false],
])("offers an account only with open sign-up: %s", (sign_up, isOffered) => {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  client.setQueryData(entry.queryKey, { sign_up, studio: { name: null } } as never);
  client.setQueryData(publicEffects.queryKey, [
    { slug: "a", name: "A", credits_cost: 1, output_mime_type: "image/png" },
  ] as never);
  render(
    <QueryClientProvider client={client}>
      <TooltipProvider>
        <Catalogue />
      </TooltipProvider>
    </QueryClientProvider>,
  );
  expect(screen.queryByText(texts.signUp.title) !== null).toBe(isOffered);
});
