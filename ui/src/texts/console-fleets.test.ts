import { expect, it } from "vitest";
import { fleet } from "./console-fleets";

it("gives the reason and details for an ended machine", () => {
  expect(fleet.ended.why("boot_failed: no worker after 421 s")).toBe("Did not become a worker: no worker after 421 s");
  expect(fleet.ended.why("unneeded")).toBe("No longer needed");
  expect(fleet.ended.why("new_reason")).toBe("new_reason");
  expect(fleet.ended.why(null)).toBe("–");
});
