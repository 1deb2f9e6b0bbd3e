import { renderHook } from "@testing-library/react";
import { act } from "react";
import { describe, expect, it } from "vitest";
import { completeSignIn, requestSignIn, useIsSignInRequested } from "./renewal";
import { isPublicPage, localPath } from "./sign-in-guard";

describe("the path to open after signing in", () => {
  it("is the page that the user wanted", () => expect(localPath("/queue?q=a%20b")).toBe("/queue?q=a%20b"));

  it.each([
    ...["https://evil.test/", "//evil.test/a", "///evil.test", "////evil.test", "https:evil.test", "http:///evil.test"],
    ...[
      "/\\evil.test",
      "\\\\evil.test",
      "/\\/evil.test",
      "/\t/evil.test",
      "/\n/evil.test",
      "/\r\\evil.test",
      "\t//evil.test",
    ],
    ...["/.//evil.test", "/./\\evil.test", "/queue/..//evil.test", "/queue/../..//evil.test", "/a/b/../..//evil.test"],
    ...[
      "/%2e//evil.test",
      "/queue/%2e%2e//evil.test",
      "/queue/.%2E//evil.test",
      "/..//evil.test?q=1",
      "/.//",
      "/.\t//evil.test",
    ],
    ...[
      "//user@evil.test",
      "/.//user:password@evil.test:80/",
      "//[::1]/",
      "//[",
      "/.//[",
      "//%00",
      "//localhost@evil.test",
    ],
    ...[
      "javascript:1",
      "data:text/html,x",
      "blob:http://localhost:3000/x",
      " //evil.test",
      "queue",
      "/sign-in",
      "/./sign-in",
      "",
    ],
    undefined,
  ])("is the start page for %j", (wanted) => expect(localPath(wanted)).toBe("/"));

  it.each([
    "/queue",
    "/queue/..",
    "/%2f%2fevil.test",
    "/jobs/a//b",
    "/queue?q=//evil.test",
    "/@evil.test",
    "/evil.test:80",
  ])("stays on this host for %s", (wanted) =>
    expect(new URL(localPath(wanted), location.origin).origin).toBe(location.origin),
  );
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
