import { render, screen } from "@testing-library/react";
import { expect, test } from "vitest";
import { Facts } from "./Facts";

test("leaves out entries without a value", () => {
  const isShown = false;
  render(
    <Facts
      facts={[
        ["ComfyUI", isShown && <a href="/">Open</a>],
        ["Batch", null],
        ["Seed", "7"],
      ]}
    />,
  );
  expect(screen.getAllByRole("term").map((each) => each.textContent)).toEqual(["Seed"]);
});
