import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, within } from "@testing-library/react";
import { beforeEach, expect, it } from "vitest";
import { TooltipProvider } from "@/kit";
import { changeDraft, draftOf, EMPTY } from "./drafts";
import { useForm } from "./form";
import { InputField } from "./InputField";
import type { Input } from "./inputs";
import { modelMetadata, models } from "./models";
import { choice, input } from "./test-fixtures";

const NAMES = ["a.safetensors", "people/b.safetensors"];
const lora = input("lora", "choice", { choices: NAMES, default_value: NAMES[0] as string, role: "model" });
const form = { ...choice, properties: [...choice.properties, lora] };

function Harness({ field, canBrowse }: { field: Input; canBrowse: boolean }) {
  return <InputField form={useForm(form)} input={field} canBrowse={canBrowse} />;
}

function show({ field = lora, canBrowse = true } = {}) {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  const items = NAMES.map((name) => ({ name, size_bytes: 2048, modified_at: null }));
  client.setQueryData(models(form, field.key).queryKey, { items });
  const [first, second] = NAMES as [string, string];
  client.setQueryData(modelMetadata(form, "lora", first).queryKey, { title: null, trigger_words: ["ohwx", "lake"] });
  client.setQueryData(modelMetadata(form, "lora", second).queryKey, { title: null, trigger_words: [] });
  render(
    <QueryClientProvider client={client}>
      <TooltipProvider>
        <Harness field={field} canBrowse={canBrowse} />
      </TooltipProvider>
    </QueryClientProvider>,
  );
}

const optionNames = () => screen.getAllByRole("option").map((each) => each.getAttribute("aria-label"));

beforeEach(() => {
  localStorage.clear();
  changeDraft(choice.slug, () => EMPTY);
});

it("a chosen model becomes the value and is listed first next time", async () => {
  show();
  fireEvent.click(screen.getByRole("combobox", { name: /lora/ }));
  const dialog = await screen.findByRole("dialog", { name: /Choose/ });
  expect(within(dialog).getByText("people")).toBeTruthy();
  expect(dialog.querySelectorAll("img")).toHaveLength(2);
  fireEvent.click(screen.getByRole("option", { name: "people/b.safetensors" }));
  expect(draftOf(choice.slug).texts.lora).toBe("people/b.safetensors");
  expect(screen.queryByRole("dialog")).toBeNull();
  fireEvent.click(screen.getByRole("combobox", { name: /lora/ }));
  await screen.findByText("Recently used");
  expect(optionNames()).toEqual(["people/b.safetensors", "a.safetensors", "people/b.safetensors"]);
});

it("a trigger word is added to the prompt", () => {
  show();
  fireEvent.click(screen.getByRole("button", { name: /Add .*ohwx.* to the prompt/ }));
  expect(draftOf(choice.slug).texts.prompt).toBe("a lake, ohwx");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: /ohwx.* is in the prompt/ }).disabled).toBe(true);
  expect(screen.getByRole<HTMLButtonElement>("button", { name: /lake.* is in the prompt/ }).disabled).toBe(true);
});

it("a name can be typed if there are too many models for a list", async () => {
  show({ field: { ...lora, type: "text", choices: [] } });
  fireEvent.change(screen.getByRole("textbox"), { target: { value: "c.ckpt" } });
  expect(draftOf(choice.slug).texts.lora).toBe("c.ckpt");
  fireEvent.click(screen.getByRole("button", { name: /Choose/ }));
  await screen.findByRole("dialog");
  expect(optionNames()).toEqual(NAMES);
});

it("a server shows a list without pictures", () => {
  show({ canBrowse: false });
  fireEvent.click(screen.getByRole("combobox"));
  expect(screen.queryByRole("dialog", { name: /Choose/ })).toBeNull();
});
