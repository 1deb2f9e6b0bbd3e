import { describe, expect, test } from "vitest";
import { PlaybackSync } from "./playback-sync";

class Clip extends EventTarget {
  currentTime = 0;
  paused = true;
  constructor(readonly duration: number) {
    super();
  }
  async play() {
    this.paused = false;
  }
  pause() {
    this.paused = true;
  }
  at(seconds: number, what = "timeupdate") {
    this.currentTime = seconds;
    this.dispatchEvent(new Event(what));
  }
}

const playing = (...lengths: number[]) => {
  const sync = new PlaybackSync();
  const clips = lengths.map((each) => new Clip(each));
  for (const each of clips) sync.add(each);
  return { sync, clips };
};

describe("synchronized playback", () => {
  test("aligns drifting videos with the longest one", () => {
    const { sync, clips } = playing(2, 4);
    sync.play();
    clips[1]?.at(1.5);
    expect(clips[0]?.currentTime).toBe(1.5);
    clips[1]?.at(1.55);
    expect(clips[0]?.currentTime).toBe(1.5);
  });

  test("lets shorter videos wait at their end, and restarts all together", () => {
    const { sync, clips } = playing(2, 4);
    sync.play();
    clips[1]?.at(3);
    expect(clips[0]?.currentTime).toBe(2);
    if (clips[0]) clips[0].paused = true;
    clips[1]?.at(4, "ended");
    expect(clips.map((each) => [each.currentTime, each.paused])).toEqual([
      [0, false],
      [0, false],
    ]);
  });

  test("shows the same moment in all videos when paused", () => {
    const { sync, clips } = playing(4, 4);
    sync.play();
    if (clips[0]) clips[0].currentTime = 1.02;
    if (clips[1]) clips[1].currentTime = 1.07;
    sync.pause();
    expect(clips.map((each) => each.currentTime)).toEqual([1.02, 1.02]);
    expect(clips.every((each) => each.paused)).toBe(true);
  });
});
