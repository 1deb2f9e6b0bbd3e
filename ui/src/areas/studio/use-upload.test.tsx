import { act, renderHook } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { Problem } from "@/api/problem";
import { studio } from "@/texts/studio";
import { useUpload } from "./use-upload";

const upload = vi.hoisted(() => vi.fn());
const live = vi.hoisted(() => vi.fn());
vi.mock("@/api/uploads", () => ({ upload }));
vi.mock("@/live", () => ({ useLiveState: live }));

afterEach(() => vi.useRealTimers());

async function statesAfterCuts(cuts: number): Promise<(string | undefined)[]> {
  vi.useFakeTimers();
  upload.mockRejectedValue(new Problem("Away", 0));
  const { result } = renderHook(() => useUpload());
  act(() => result.current.start(new File(["x"], "a.png")));
  const states = [];
  for (let cut = 0; cut < cuts; cut += 1) {
    await act(() => vi.advanceTimersByTimeAsync(0));
    states.push(result.current.upload?.state);
    if (cut + 1 === cuts) expect(result.current.upload?.problem).not.toBeNull();
    await act(() => vi.advanceTimersByTimeAsync(cut + 1 === cuts ? 0 : 2000 * 2 ** cut));
  }
  if (states.includes("refused")) expect(result.current.upload?.problem).toBe(studio.effect.storageAway);
  return states;
}

it("ends with an error message if the storage refuses this page while the server is up", async () => {
  live.mockReturnValue("live");
  expect(await statesAfterCuts(3)).toEqual(["cut", "cut", "refused"]);
});

it("continues while the server is unreachable", async () => {
  live.mockReturnValue("away");
  expect(await statesAfterCuts(4)).toEqual(["cut", "cut", "cut", "cut"]);
});
