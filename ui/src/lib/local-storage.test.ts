import { act, renderHook } from "@testing-library/react";
import { afterEach, describe, expect, it, vi } from "vitest";
import { readLocal, useLocalStorage, writeLocal } from "./local-storage";

afterEach(() => {
  vi.unstubAllGlobals();
  localStorage.clear();
});

describe("local storage", () => {
  it("keeps a value in memory when the browser cannot store it", () => {
    writeLocal("size", "small");
    const setItem = () => {
      throw new DOMException("full", "QuotaExceededError");
    };
    vi.stubGlobal("localStorage", { getItem: () => "small", setItem });
    writeLocal("size", "large");
    expect(readLocal("size")).toBe("large");
    vi.unstubAllGlobals();
    writeLocal("size", "medium");
    expect([readLocal("size"), localStorage.getItem("comfyrelay.size")]).toEqual(["medium", "medium"]);
  });

  it("removes a value that is set to null", () => {
    writeLocal("size", "small");
    writeLocal("size", null);
    expect(readLocal("size")).toBeNull();
  });

  it("updates all components that use a value, also for changes of other tabs", () => {
    const { result } = renderHook(() => useLocalStorage("theme"));
    act(() => result.current[1]("dark"));
    expect(result.current[0]).toBe("dark");
    localStorage.setItem("comfyrelay.theme", "light");
    act(() => void dispatchEvent(new StorageEvent("storage", { key: "comfyrelay.theme" })));
    expect(result.current[0]).toBe("light");
  });
});
