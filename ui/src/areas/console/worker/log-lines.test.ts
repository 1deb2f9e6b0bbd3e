import { expect, it } from "vitest";
import { lineOf } from "./log-lines";

it("a line of a log is shown with its time, its level and what happened first", () => {
  const line = lineOf('{"fleet": "home", "event": "worker.registered", "level": "info", "count": 2}');
  expect(line).toBe("info worker.registered fleet=home count=2");
  expect(lineOf('{"event": "a", "timestamp": "2026-01-01T10:00:00"}')).toBe("10:00:00 a");
});

it("what is no object is shown as it is", () => {
  expect(lineOf("Traceback <b>")).toBe("Traceback <b>");
  expect(lineOf("7")).toBe("7");
});
