import { render, screen } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { VirtualList } from "./VirtualList";

const NUMBERS = Array.from({ length: 1000 }, (_each, at) => at);

// happy-dom has no layout
beforeEach(() => {
  vi.spyOn(HTMLElement.prototype, "offsetHeight", "get").mockReturnValue(200);
  vi.spyOn(HTMLElement.prototype, "clientHeight", "get").mockReturnValue(200);
});
afterEach(() => vi.restoreAllMocks());

const list = (items: readonly number[], onEnd?: () => void) => (
  <VirtualList items={items} keyOf={String} height={40} gap={0} name="Numbers" {...(onEnd && { onEnd })}>
    {(each) => `Number ${each}`}
  </VirtualList>
);

describe("a virtual list", () => {
  it("renders only the visible items and tells screen readers how many there are", () => {
    render(list(NUMBERS));
    const items = screen.getAllByRole("listitem");
    expect(items.length).toBeLessThan(50);
    expect(items[0]?.getAttribute("aria-posinset")).toBe("1");
    expect(items[0]?.getAttribute("aria-setsize")).toBe("1000");
  });

  it("asks for more only near its end", () => {
    const onEnd = vi.fn();
    const { rerender } = render(list(NUMBERS, onEnd));
    expect(onEnd).not.toHaveBeenCalled();
    rerender(list(NUMBERS.slice(0, 5), onEnd));
    expect(onEnd).toHaveBeenCalledOnce();
  });
});
