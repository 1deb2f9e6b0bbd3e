import { fireEvent, render } from "@testing-library/react";
import { expect, it } from "vitest";
import { Poster } from "./Poster";

it("a poster that cannot be loaded is replaced by its fallback until the URL changes", () => {
  const { container, rerender } = render(<Poster url="/files/a.webp">nothing</Poster>);
  fireEvent.error(container.querySelector("img") as HTMLImageElement);
  expect(container.innerHTML).toBe("nothing");
  rerender(<Poster url="/files/b.webp">nothing</Poster>);
  expect(container.querySelector("img")?.getAttribute("src")).toBe("/files/b.webp");
});
