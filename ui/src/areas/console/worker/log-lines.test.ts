import { expect, it } from "vitest";
import { lineOf } from "./log-lines";

it("formats time, level and event first", () => {
  const line = lineOf('{"fleet": "home", "event": "worker.registered", "level": "info", "count": 2}');
  expect(line).toBe("info worker.registered fleet=home count=2");
  expect(lineOf('{"event": "a", "timestamp": "2026-01-01T10:00:00"}')).toBe("10:00:00 a");
});

it("keeps lines that are not JSON objects", () => {
  expect(lineOf("Traceback <b>")).toBe("Traceback <b>");
  expect(lineOf("7")).toBe("7");
});
