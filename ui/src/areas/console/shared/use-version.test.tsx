import { renderHook } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { Problem } from "@/api/problem";
import { shared } from "@/texts/console-shared";
import { useVersion } from "./use-version";

const saved = { data: {} };

it("sends the version that was shown when editing began", async () => {
  const { result, rerender } = renderHook(({ etag, isDirty }) => useVersion({ etag }, isDirty), {
    initialProps: { etag: '"1"', isDirty: false },
  });
  rerender({ etag: '"2"', isDirty: false });
  rerender({ etag: '"2"', isDirty: true });
  // a change by someone else arrives while the user edits
  rerender({ etag: '"3"', isDirty: true });
  const send = vi.fn(async () => saved);
  await result.current(send, () => {});
  expect(send).toHaveBeenCalledWith('"2"');
});

it("reports once that someone else changed the object", async () => {
  const { result } = renderHook(() => useVersion({ etag: '"1"' }, true));
  const refetch = vi.fn();
  const refused = vi.fn(async () => {
    throw new Problem("changed", 412);
  });
  await expect(result.current(refused, refetch)).rejects.toThrow(shared.changedMeanwhile);
  expect(refetch).toHaveBeenCalledOnce();
  const send = vi.fn(async () => saved);
  await result.current(send, refetch);
  expect(send).toHaveBeenCalledWith(undefined);
});
