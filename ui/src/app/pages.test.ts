import { QueryClient } from "@tanstack/react-query";
import { expect, test } from "vitest";
import { isPublicPage } from "@/session/sign-in-guard";
import { palettePaths } from "./pages";
import { makeRouter } from "./routes";

/** The start page redirects, and the kit is for developers. */
const NOT_LISTED = ["/", "/kit"];

test("the palette of an administrator lists every page with a fixed address", () => {
  const paths = Object.keys(makeRouter(new QueryClient()).routesByPath).map((path) => path.replace(/(?<=.)\/$/, ""));
  const pages = new Set(
    paths.filter((path) => !path.includes("$") && !NOT_LISTED.includes(path) && !isPublicPage(path)),
  );
  expect([...new Set(palettePaths("admin"))].sort()).toEqual([...pages].sort());
});

test("the palette of a customer has no console pages", () => {
  expect(palettePaths("user").filter((path) => path.startsWith("/console"))).toEqual([]);
  expect(palettePaths("user")).toContain("/studio/videos");
});
