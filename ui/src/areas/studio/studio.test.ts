import { describe, expect, it } from "vitest";
import { studio } from "@/texts/studio";
import {
  currentStep,
  isMissingOutput,
  isTechnical,
  isVideoUrl,
  matchesState,
  placeholderHue,
  processingSeconds,
  STATES,
} from "./queries";
import { retryDelay } from "./use-upload";

describe("video state", () => {
  it("is missing if it completed without outputs", () => {
    expect(isMissingOutput({ status: "completed", outputs: [] })).toBe(true);
    expect(isMissingOutput({ status: "processing", outputs: [] })).toBe(false);
    expect(isMissingOutput({ status: "failed", outputs: [] })).toBe(false);
  });

  it("has four steps", () => {
    const step = (status: "queued" | "paused" | "processing" | "completed") => currentStep({ status });
    expect([step("queued"), step("paused"), step("processing"), step("completed")]).toEqual([1, 1, 2, 3]);
  });

  it("matches its filter states", () => {
    const of = (job: Parameters<typeof matchesState>[0]) => STATES.filter((each) => matchesState(job, each));
    expect(of({ status: "queued", is_expired: false })).toEqual(["waiting"]);
    expect(of({ status: "processing", is_expired: false })).toEqual(["running"]);
    expect(of({ status: "paused", is_expired: false })).toEqual(["paused"]);
    expect(of({ status: "completed", is_expired: true })).toEqual(["completed", "expired"]);
  });

  it("explains waiting without operator terms", () => {
    expect(studio.video.why("no_worker")).toContain("starts automatically");
    expect(studio.video.why("no_worker")).not.toContain("worker");
    expect(studio.video.why("busy")).toBe("Waiting in the queue.");
    expect(studio.video.why(undefined)).toBe("Waiting in the queue.");
  });

  it("formats estimates", () => {
    expect(studio.video.startsIn(0.2)).toBe("Starts in a moment");
    expect(studio.video.startsIn(40)).toBe("Starts in about 40 s");
    expect(studio.video.longer(90)).toMatch(/^Takes about /);
  });

  it("backs off between upload attempts", () => {
    expect([0, 1, 2, 9].map(retryDelay)).toEqual([2000, 4000, 8000, 60_000]);
  });

  it("computes the processing time", () => {
    const times = { started_at: "2026-01-01T12:00:00Z", completed_at: "2026-01-01T12:00:09Z" };
    expect(processingSeconds({ status: "completed", ...times })).toBe(9);
    expect(processingSeconds({ status: "processing", ...times, completed_at: null })).toBeNull();
  });

  it("detects technical errors", () => {
    expect(isTechnical("ImageInvert (2): mat1 and mat2 shapes cannot be multiplied")).toBe(true);
    expect(isTechnical("RuntimeError: it broke")).toBe(true);
    expect(isTechnical("The file is not an image that can be read. Upload another.")).toBe(false);
  });
});

describe("failure texts", () => {
  const failureOf = (error: string) => studio.video.failure(error);
  it("have a cause and advice", () => {
    const memory = failureOf("KSampler (3): there was not enough memory, even with the 24 GB of the GPU to itself.");
    expect(memory?.cause).toBe("Not enough memory");
    expect(memory?.advice).toContain("Try a smaller image");
    expect(failureOf("LoadImage (1): the file is not an image that can be read")?.cause).toBe(
      "Your file could not be read",
    );
    expect(failureOf("The worker stopped responding.")?.advice).toContain("Your file is not the cause");
    expect(failureOf("KSampler (3): the GPU is in a bad state, ComfyUI must be restarted")?.advice).toContain(
      "Try again",
    );
    expect(
      failureOf("CheckpointLoaderSimple (4): Error while deserializing header of a safetensors file")?.advice,
    ).toContain("Contact your administrator");
  });

  it("do not mention nodes, workers and GPUs", () => {
    for (const error of ["KSampler (3): CUDA out of memory", "The worker stopped responding.", "a model is missing"]) {
      const words = Object.values(failureOf(error) ?? {}).join(" ");
      expect(words).not.toMatch(/node|worker|card|GPU|CUDA|model/i);
    }
  });

  it("are null for unknown errors", () => {
    expect(failureOf("The workflow of this job no longer exists.")).toBeNull();
    expect(failureOf("ImageInvert (2): mat1 and mat2 shapes cannot be multiplied")).toBeNull();
  });
});

describe("effect covers", () => {
  it("have stable placeholder hues", () => {
    const names = ["film-look", "ink-drawing", "golden-hour", "slow-motion", "night-city"];
    expect(new Set(names.map(placeholderHue)).size).toBe(names.length);
    expect(names.map(placeholderHue)).toEqual(names.map(placeholderHue));
    expect(placeholderHue("")).toBeLessThan(360);
  });

  it("detect videos in signed URLs", () => {
    expect(isVideoUrl("https://s3.test/a/preview.mp4?X-Amz-Signature=1.png")).toBe(true);
    expect(isVideoUrl("/files/preview.webp?name=a.mp4")).toBe(false);
  });
});
