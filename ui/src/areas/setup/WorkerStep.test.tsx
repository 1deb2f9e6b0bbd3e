import { QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { makeQueryClient } from "@/api/queries";
import { TooltipProvider } from "@/kit/Tooltip";
import { console as shared } from "@/texts/console";
import { WorkerStep } from "./WorkerStep";

afterEach(() => vi.unstubAllGlobals());

it("masks the secret in the command until it is shown", async () => {
  const variables = { API_BASE_URL: "http://127.0.0.1:8420", FLEET_SECRET: "not-for-others" };
  const data = {
    command: "FLEET_SECRET=not-for-others comfyrelay worker",
    powershell: "",
    install: "pip install .",
    powershell_install: "",
    variables,
  };
  vi.stubGlobal("fetch", async () => new Response(JSON.stringify({ data })));
  render(
    <QueryClientProvider client={makeQueryClient()}>
      <TooltipProvider>
        <WorkerStep fleet={{ slug: "home", stage: "production" }} workers={[]} onDone={() => undefined} />
      </TooltipProvider>
    </QueryClientProvider>,
  );
  const show = await screen.findByRole("button", { name: shared.showSecret });
  expect(document.body.textContent).not.toContain("not-for-others");
  fireEvent.click(show);
  expect(document.body.textContent).toContain("not-for-others");
});
