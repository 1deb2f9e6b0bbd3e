import { expect, it } from "vitest";
import { console as shared } from "./console";
import { overview } from "./console-overview";

it("shows a cost without any priced time as unknown, although sums of floats differ", () => {
  expect(shared.cost(0, 42.166000000000004, 42.166)).toBe("unknown");
  expect(shared.cost(0.5, 42.166000000000004, 40)).toBe("0.50 + unknown");
  expect(shared.cost(0.5, 42.166, 0)).toBe("0.50");
});

it("says how many waiting jobs no worker can run", () => {
  expect(overview.waitingAside(0, 0, 0)).toBe("queue is empty");
  expect(overview.waitingAside(3, 0, 120)).toBe("oldest 2 min");
  expect(overview.waitingAside(3, 2, 120)).toBe("no worker can run 2 of them");
  expect(overview.waitingAside(2, 2, 0)).toBe("no worker can run them");
  expect(overview.waitingAside(1, 1, 0)).toBe("no worker can run it");
});
