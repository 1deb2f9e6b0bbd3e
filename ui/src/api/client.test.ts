import { afterEach, describe, expect, it, vi } from "vitest";
import { get, here, post, renewSessionBy } from "./client";
import { Problem } from "./problem";

const answers = (status: number, body: unknown) =>
  vi.stubGlobal(
    "fetch",
    vi.fn(async () => new Response(JSON.stringify(body), { status })),
  );

afterEach(() => vi.unstubAllGlobals());

describe("the client", () => {
  it("fills path parameters and leaves out empty query parameters", async () => {
    answers(200, { data: { items: [] } });
    await get("/api/ai-jobs", { query: { limit: 5, q: "" } });
    await get("/api/ai-jobs/{job_id}", { path: { job_id: "a/b" } });
    expect(vi.mocked(fetch).mock.calls.map(([path]) => path)).toEqual(["/api/ai-jobs?limit=5", "/api/ai-jobs/a%2Fb"]);
  });

  it("throws a message that names the invalid fields", async () => {
    answers(422, { detail: "The input is not valid.", errors: { priority: "must be a number" } });
    await expect(post("/api/ai-jobs", { body: { idempotency_key: "k" } })).rejects.toThrow(
      "The input is not valid. priority: must be a number",
    );
  });

  it("throws a problem when the server is unreachable", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
    const thrown = await get("/api/me").catch((each: unknown) => each);
    expect(thrown).toBeInstanceOf(Problem);
    expect((thrown as Problem).isAway).toBe(true);
  });

  it("makes file URLs of this server relative", () => {
    expect(here("http://127.0.0.1:8420/files/a.png?sig=1")).toBe("/files/a.png?sig=1");
    expect(here("https://bucket.example.com/a.png")).toBe("https://bucket.example.com/a.png");
  });

  it("repeats a request after the session was renewed", async () => {
    let isIn = false;
    vi.stubGlobal(
      "fetch",
      vi.fn(async () => new Response(JSON.stringify({ data: "mine" }), { status: isIn ? 200 : 401 })),
    );
    renewSessionBy(async () => {
      isIn = true;
    });
    await expect(get("/api/me")).resolves.toBe("mine");
    isIn = false;
    // here 401 means a wrong password
    await expect(post("/api/login", { body: { email: "", password: "" } })).rejects.toThrow(Problem);
    renewSessionBy(null);
    await expect(get("/api/me")).rejects.toThrow(Problem);
  });
});
