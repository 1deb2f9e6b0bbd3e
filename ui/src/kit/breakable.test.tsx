import { render } from "@testing-library/react";
import { expect, it } from "vitest";
import { breakable } from "./breakable";

it("names break after their separators, and numbers do not", () => {
  const { container } = render(<p>{breakable("a_long-name.v2/x.png at 1.5, -3")}</p>);
  expect(container.innerHTML).toBe("<p>a_<wbr>long-<wbr>name.<wbr>v2/<wbr>x.<wbr>png at 1.5, -3</p>");
  expect(container.textContent).toBe("a_long-name.v2/x.png at 1.5, -3");
});
