import { describe, expect, it } from "vitest";
import { newReference } from "./queries";

describe("newReference", () => {
  const now = new Date("2026-05-04T03:02:01Z");

  it("is unique within a second and names the administrator", () => {
    const [one, other] = [newReference("ada@example.com", now), newReference("ada@example.com", now)];
    expect(one).not.toBe(other);
    expect(one).toMatch(/^console 2026-05-04 03\.02\.01 \w{6} ada@example\.com$/);
  });

  it("is valid for any email", () => {
    const found = newReference(`a:${"b".repeat(240)}@c`, now);
    expect(found).not.toContain(":");
    expect(found.length).toBeLessThanOrEqual(200);
  });
});
