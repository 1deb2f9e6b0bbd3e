import { newKey, post } from "@/api/client";
import { upload } from "@/api/uploads";
import { setup as texts } from "@/texts/setup";

/** Draws an image whose inversion is easy to see. */
export async function drawSamplePicture(): Promise<File> {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 512;
  const context = canvas.getContext("2d");
  if (!context) throw new Error("no canvas");
  context.fillStyle = "#20304a";
  context.fillRect(0, 0, 512, 512);
  ["#f2b134", "#ed553b", "#3caea3", "#f6f4e8"].forEach((colour, number) => {
    context.fillStyle = colour;
    context.beginPath();
    context.arc(140 + number * 78, 140 + number * 70, 84, 0, 2 * Math.PI);
    context.fill();
  });
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error("no picture");
  return new File([blob], texts.job.sample, { type: "image/png" });
}

export async function runFirstJob(effectId: number, picture: File): Promise<string> {
  const file = await upload(picture);
  const body = { effect_id: effectId, input_file_id: file.id, idempotency_key: newKey() };
  return (await post("/api/ai-jobs", { body })).data.id;
}
