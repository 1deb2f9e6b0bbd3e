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

const of = (...lengths: number[]) => {
  const sync = new PlaybackSync();
  const clips = lengths.map((each) => new Clip(each));
  for (const each of clips) sync.add(each);
  return { sync, clips };
};

describe("players that run together", () => {
  test("those that drift are put where the longest is", () => {
    const { sync, clips } = of(2, 4);
    sync.play();
    clips[1]?.at(1.5);
    expect(clips[0]?.currentTime).toBe(1.5);
    clips[1]?.at(1.55);
    expect(clips[0]?.currentTime).toBe(1.5);
  });

  test("a shorter one waits at its end, and all begin again together", () => {
    const { sync, clips } = of(2, 4);
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

  test("a pause shows the same moment in all of them", () => {
    const { sync, clips } = of(4, 4);
    sync.play();
    if (clips[0]) clips[0].currentTime = 1.02;
    if (clips[1]) clips[1].currentTime = 1.07;
    sync.pause();
    expect(clips.map((each) => each.currentTime)).toEqual([1.02, 1.02]);
    expect(clips.every((each) => each.paused)).toBe(true);
  });
});
