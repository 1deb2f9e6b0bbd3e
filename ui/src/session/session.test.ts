import { renderHook } from "@testing-library/react";
import { act } from "react";
import { describe, expect, it } from "vitest";
import { completeSignIn, requestSignIn, useIsSignInRequested } from "./renewal";
import { isPublicPage, localPath } from "./sign-in-guard";

describe("the path to open after signing in", () => {
  it("is the page that the user wanted", () => expect(localPath("/queue?q=a%20b")).toBe("/queue?q=a%20b"));

  it.each([
    "https://evil.test/",
    "//evil.test/a",
    "/\\evil.test",
    "/\t/evil.test",
    "javascript:1",
    "/sign-in",
    "",
    undefined,
  ])("is the start page for %s", (wanted) => expect(localPath(wanted)).toBe("/"));
});

it("only the sign-in and setup pages are public", () =>
  expect(["/sign-in", "/sign-up", "/reset", "/setup", "/", "/setups", "/console"].map(isPublicPage)).toEqual([
    ...[true, true, true, true],
    ...[false, false, false],
  ]));

describe("an expired session", () => {
  it("asks the user once, and all waiting requests continue after the sign-in", async () => {
    const { result } = renderHook(useIsSignInRequested);
    let waiting: Promise<void>[] = [];
    act(() => {
      waiting = [requestSignIn(), requestSignIn()];
    });
    expect(waiting[0]).toBe(waiting[1]);
    expect(result.current).toBe(true);
    act(() => completeSignIn());
    await Promise.all(waiting);
    expect(result.current).toBe(false);
  });

  it("is asked for again after the next expiry", async () => {
    const first = requestSignIn();
    completeSignIn();
    const second = requestSignIn();
    expect(second).not.toBe(first);
    completeSignIn();
    await Promise.all([first, second]);
  });
});
