// Plays several videos in sync. The longest one leads, and all restart together.

/** Larger drift is corrected. Smaller drift is invisible, and each correction drops a frame. */
export const MAX_DRIFT_SECONDS = 0.08;

type PlayableVideo = Pick<
  HTMLVideoElement,
  "currentTime" | "duration" | "paused" | "play" | "pause" | "addEventListener" | "removeEventListener"
>;

export class PlaybackSync {
  private readonly videos = new Set<PlayableVideo>();
  private readonly listeners = new Set<() => void>();
  private shouldPlay = false;

  readonly watch = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  };

  get isPlaying(): boolean {
    return this.shouldPlay;
  }

  get length(): number {
    return Math.max(0, ...[...this.videos].map(lengthOf));
  }

  get time(): number {
    return this.leader?.currentTime ?? 0;
  }

  /** Adds a video. Returns a function that removes it. */
  add(video: PlayableVideo): () => void {
    this.videos.add(video);
    const follow = () => {
      if (video === this.leader) this.follow();
    };
    const ended = () => {
      if (video !== this.leader || !this.shouldPlay) return;
      this.seek(0);
      this.play();
    };
    const known = () => {
      this.seek(this.time);
      if (this.shouldPlay) this.start(video);
      this.notify();
    };
    video.addEventListener("timeupdate", follow);
    video.addEventListener("ended", ended);
    video.addEventListener("loadedmetadata", known);
    return () => {
      this.videos.delete(video);
      video.removeEventListener("timeupdate", follow);
      video.removeEventListener("ended", ended);
      video.removeEventListener("loadedmetadata", known);
      this.notify();
    };
  }

  play(): void {
    this.shouldPlay = true;
    for (const each of this.videos) this.start(each);
    this.notify();
  }

  pause(): void {
    this.shouldPlay = false;
    for (const each of this.videos) each.pause();
    // align all videos at the same moment
    this.seek(this.time);
  }

  toggle(): void {
    if (this.shouldPlay) this.pause();
    else this.play();
  }

  seek(seconds: number): void {
    for (const each of this.videos) each.currentTime = Math.min(Math.max(0, seconds), lengthOf(each));
    this.notify();
  }

  private start(video: PlayableVideo): void {
    // a shorter video that has ended waits for the others
    if (lengthOf(video) && this.time >= lengthOf(video) && video !== this.leader) return;
    video.play().catch(() => undefined);
  }

  private follow(): void {
    const { time } = this;
    for (const each of this.videos) {
      if (each === this.leader) continue;
      const wanted = Math.min(time, lengthOf(each));
      if (Math.abs(each.currentTime - wanted) > MAX_DRIFT_SECONDS) each.currentTime = wanted;
    }
    this.notify();
  }

  private get leader(): PlayableVideo | undefined {
    let found: PlayableVideo | undefined;
    for (const each of this.videos) if (!found || lengthOf(each) > lengthOf(found)) found = each;
    return found;
  }

  private notify(): void {
    for (const each of this.listeners) each();
  }
}

const lengthOf = ({ duration }: Pick<PlayableVideo, "duration">): number => (Number.isFinite(duration) ? duration : 0);
