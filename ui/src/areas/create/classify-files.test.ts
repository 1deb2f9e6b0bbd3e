import { expect, test } from "vitest";
import { classifyFiles } from "./classify-files";

test("sorts files into workflows, media and unsupported files", async () => {
  const json = (name: string, content: unknown) => new File([JSON.stringify(content)], name);
  const shot = new File(["x"], "a.png", { type: "image/png" });
  const saved = json("saved.json", { nodes: [], links: [] });
  const api = json("API.JSON", { "1": { class_type: "SaveImage", inputs: {} } });
  const files = [
    json("a.json", { camera: { iso: 100 } }),
    shot,
    saved,
    api,
    new File(["{"], "b.json"),
    json("n.txt", 1),
  ];
  const { graphs, media, invalidJson, unsupported } = await classifyFiles(files);
  expect(graphs.map((each) => each.name)).toEqual(["saved.json", "API.JSON"]);
  expect(media).toEqual([shot]);
  expect([invalidJson, unsupported]).toEqual([[], ["a.json", "b.json", "n.txt"]]);
  // a single file is reported as an invalid workflow
  expect((await classifyFiles([json("a.json", { camera: 1 })])).notWorkflows).toEqual(["a.json"]);
  expect((await classifyFiles([new File(["{"], "b.json")])).invalidJson).toEqual(["b.json"]);
});

test("rejects JSON without a workflow", async () => {
  const named = async (content: unknown) => {
    const { graphs, notWorkflows } = await classifyFiles([new File([JSON.stringify(content)], "a.json")]);
    return [graphs.length, notWorkflows.length];
  };
  expect(await named({ a: 1 })).toEqual([0, 1]);
  expect(await named({ prompt: { "1": { class_type: "X" } } })).toEqual([1, 0]);
});
