import { describe, expect, it } from "vitest";
import { isEntry, ownAddress } from "./entering";
import { askForSession, sessionIsBack } from "./renewal";

describe("who signs in", () => {
  it("comes to where they wanted", () => expect(ownAddress("/queue?q=a%20b")).toBe("/queue?q=a%20b"));
  it.each([
    "https://evil.test/",
    "//evil.test/a",
    "/\\evil.test",
    "/\t/evil.test",
    "javascript:1",
    "/sign-in",
    "",
    undefined,
  ])("comes nowhere else by %s", (wanted) => expect(ownAddress(wanted)).toBe("/"));
});

it("only pages that lead in are open to everybody", () =>
  expect(["/sign-in", "/sign-up", "/reset", "/setup", "/", "/setups", "/console"].map(isEntry)).toEqual([
    ...[true, true, true, true],
    ...[false, false, false],
  ]));

it("everybody who waits for a session goes on when there is one", async () => {
  const waiting = [askForSession(), askForSession()];
  sessionIsBack();
  await Promise.all(waiting);
});
