import { act, renderHook } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";
import { useGallerySelection } from "./use-gallery-selection";

const ORDER = ["a", "b", "c", "d"];

function mount(sel: string | undefined, isLoaded = true) {
  const onSel = vi.fn();
  const hook = renderHook((props) => useGallerySelection({ ...props, onSel }), {
    initialProps: { order: ORDER as readonly string[], isLoaded, sel },
  });
  return { ...hook, onSel };
}

describe("the gallery selection", () => {
  it("reads the URL and writes changes back", () => {
    const { result, onSel } = mount("b");
    expect(result.current.ids).toEqual(["b"]);
    act(() => result.current.toggle("d"));
    expect(result.current.ids).toEqual(["b", "d"]);
    expect(onSel).toHaveBeenLastCalledWith("b,d");
  });

  it("reads `all` once the index has arrived", () => {
    const { result, rerender, onSel } = mount("all", false);
    rerender({ order: ORDER, isLoaded: true, sel: "all" });
    expect(result.current.ids).toEqual(ORDER);
    expect(onSel).not.toHaveBeenCalled();
  });

  it("extends from the focused output if nothing is selected", () => {
    const { result } = mount(undefined);
    act(() => result.current.extendTo("c", "b"));
    expect(result.current.ids).toEqual(["b", "c"]);
  });

  it("drops outputs that were deleted", () => {
    const { result, rerender } = mount("a,b");
    rerender({ order: ["b", "c"], isLoaded: true, sel: "a,b" });
    expect(result.current.ids).toEqual(["b"]);
  });
});
