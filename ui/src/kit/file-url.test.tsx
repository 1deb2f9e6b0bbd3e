import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, renderHook } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";
import { useFileUrl } from "./file-url";

function renderUrl(url: string) {
  const client = new QueryClient();
  const renew = vi.spyOn(client, "invalidateQueries");
  const hook = renderHook(({ newest }) => useFileUrl(newest), {
    initialProps: { newest: url },
    wrapper: ({ children }) => <QueryClientProvider client={client}>{children}</QueryClientProvider>,
  });
  const show = (newest: string) => {
    hook.rerender({ newest });
    return hook.result.current;
  };
  return { ...hook, show, renew };
}

describe("the URL of a file", () => {
  it("stays the same while it works, also when there is a newer signature", () => {
    const { show } = renderUrl("/files/a?sig=1");
    expect(show("/files/a?sig=2").url).toBe("/files/a?sig=1");
    expect(show("/files/b?sig=1").url).toBe("/files/b?sig=1");
  });

  it("is replaced by the newest one when it fails", () => {
    const { result, show, renew } = renderUrl("/files/a?sig=1");
    show("/files/a?sig=2");
    act(() => result.current.onError());
    expect(result.current).toMatchObject({ url: "/files/a?sig=2", isBroken: false });
    expect(renew).not.toHaveBeenCalled();
  });

  it("is broken when the newest one fails, and new URLs are requested once", () => {
    const { result, show, renew } = renderUrl("/files/a?sig=1");
    act(() => result.current.onError());
    act(() => result.current.onError());
    expect(result.current.isBroken).toBe(true);
    expect(renew).toHaveBeenCalledOnce();
    expect(show("/files/a?sig=2")).toMatchObject({ url: "/files/a?sig=2", isBroken: false });
  });
});
