import { expect, test } from "vitest";
import { estimate } from "./queries";
import { batchRequest, errorsByField, isSingleJob, jobRequests, presetValues } from "./submission";
import { choice, draft, file } from "./test-fixtures";

test("sends only changed values and keeps 64-bit seeds exact", () => {
  const body = batchRequest(choice, draft({ texts: { seed: "18446744073709551615", steps: "20" } }));
  expect(body).toEqual({
    workflow_slug: "painter",
    values: {},
    input_file_ids: ["id-a.png", "id-b.png"],
    seeds: { mode: "increment", start: 18446744073709551615n },
  });
});

test("submits a single job without batch options as one job", () => {
  const one = draft({ files: { image: [file("a.png")] }, texts: { seed: "5", prompt: "x" } });
  expect(isSingleJob(choice, one)).toBe(true);
  expect(isSingleJob(choice, { ...one, outputFolder: "mine" })).toBe(false);
  expect(jobRequests(choice, one)).toEqual([{ input_payload: { seed: 5, prompt: "x" }, input_file_id: "id-a.png" }]);
});

test("increments seeds exactly beyond 2^53", () => {
  const many = draft({ files: { image: [file("a.png")] }, texts: { seed: "9007199254740990" }, tries: "4" });
  expect(jobRequests(choice, many).map((each) => String(each.input_payload.seed))).toEqual([
    "9007199254740990",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
  ]);
});

test("maps server errors to fields", () => {
  expect(errorsByField(choice, { "items.3.steps": "no", input_file_id: "gone", "notify_urls.0": "bad" })).toEqual({
    steps: "no",
    image: "gone",
    notify_urls: "bad",
  });
});

test("saves changed values in a preset, without files and prompt lists", () => {
  const texts = { prompt: "a storm\na calm", steps: "30", seed: "18446744073709551615", sampler: "euler" };
  expect(presetValues(choice, draft({ texts }))).toEqual({ steps: 30, seed: 18446744073709551615n });
  expect(presetValues(choice, draft({ texts: { prompt: "a storm" } }))).toEqual({ prompt: "a storm" });
  expect(presetValues(choice, draft({ texts: { seed: "" }, idleSeeds: { seed: "7" } }))).toEqual({});
});

test("refreshes the estimate every minute", () => {
  expect(estimate({ values: {} }).refetchInterval).toBe(60_000);
});
