import { render } from "@testing-library/react";
import { expect, it } from "vitest";
import { Sparkline } from "./Sparkline";

it("a sparkline scales to values above its maximum", () => {
  const { container } = render(<Sparkline values={[16, 2]} maximum={2} name="GPUs busy" />);
  expect(container.querySelector("polyline")?.getAttribute("points")).toBe("0.00,0.00 100.00,21.00");
});
