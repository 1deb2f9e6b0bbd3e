import { render, screen } from "@testing-library/react";
import { expect, it } from "vitest";
import type { PublicEffect } from "@/api/types";
import { studio } from "@/texts/studio";
import { EffectCards } from "./EffectCards";

const effect = (name: string, category: string | null): PublicEffect =>
  ({ name, slug: name, category, credits_cost: 1, output_mime_type: "image/png" }) as PublicEffect;

function headings(...effects: PublicEffect[]) {
  render(<EffectCards effects={effects} link={(_effect, _className, content) => content} />);
  return screen.queryAllByRole("heading").map((each) => each.textContent);
}

it("puts effects without a category under a heading of their own", () => {
  expect(headings(effect("Negative", null), effect("Slow", "Clips"))).toEqual(["Clips", studio.otherEffects]);
});

it("shows no heading if no effect has a category", () => {
  expect(headings(effect("Negative", null))).toEqual([]);
});
