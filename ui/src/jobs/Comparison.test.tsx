import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { TooltipProvider } from "@/kit";
import { job } from "@/texts/job";
import { Comparison } from "./Comparison";

afterEach(() => vi.restoreAllMocks());

const file = (url: string, mime_type = "video/mp4") => ({ url, mime_type, poster_url: null });

const show = (...[input, output]: ReturnType<typeof file>[]) =>
  input &&
  output &&
  render(
    <QueryClientProvider client={new QueryClient()}>
      <TooltipProvider>
        <Comparison input={input} output={output} name="Result" />
      </TooltipProvider>
    </QueryClientProvider>,
  );

it("plays and pauses with the sound of the output", () => {
  vi.spyOn(HTMLMediaElement.prototype, "play").mockResolvedValue(undefined);
  const paused = vi.spyOn(HTMLMediaElement.prototype, "pause").mockReturnValue(undefined);
  show(file("/in.mp4"), file("/out.mp4"));
  const result = screen.getByLabelText<HTMLVideoElement>("Result");
  expect(result.muted).toBe(true);
  fireEvent.click(screen.getByRole("button", { name: "Unmute" }));
  expect(result.muted).toBe(false);
  expect(screen.getByLabelText<HTMLVideoElement>(job.input).muted).toBe(true);
  fireEvent.click(screen.getByRole("button", { name: "Pause" }));
  expect(paused).toHaveBeenCalledTimes(2);
  expect(screen.getByRole("button", { name: "Play" })).toBeTruthy();
});

it("has no controls for images", () => {
  show(file("/in.png", "image/png"), file("/out.png", "image/png"));
  expect(screen.queryByRole("button")).toBeNull();
});
