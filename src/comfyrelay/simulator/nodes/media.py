"""Values that pass between nodes (image batches, videos, audio), and reading and writing videos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.video.stream import VideoStream
from PIL.Image import Image

from comfyrelay.system.thread_priority import kept_priority

Images = list[Image]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Audio:
    """Decoded audio. Kept as frames, because no node needs individual samples."""

    frames: Sequence[AudioFrame]
    sample_rate: int
    layout: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VideoComponents:
    images: Images
    audio: Audio | None
    fps: Fraction


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SimulatedVideo:
    """A video from a file (decoded on demand) or from components."""

    source: Path | VideoComponents

    def components(self) -> VideoComponents:
        return self.source if isinstance(self.source, VideoComponents) else read_video(self.source)


def read_video(path: Path) -> VideoComponents:
    with av.open(str(path)) as container:
        if not container.streams.video:
            raise ValueError(f"No video stream found in file '{path}'")
        stream = container.streams.video[0]
        images: Images = []
        audio_frames: list[AudioFrame] = []
        for frame in container.decode(stream, *container.streams.audio[:1]):
            if isinstance(frame, AudioFrame):
                audio_frames.append(frame)
            elif isinstance(frame, av.VideoFrame):
                images.append(frame.to_image())  # type: ignore[no-untyped-call]
        fps = stream.average_rate or Fraction(1)
    audio = None
    if audio_frames:
        first = audio_frames[0]
        audio = Audio(frames=audio_frames, sample_rate=first.sample_rate, layout=first.layout.name)
    return VideoComponents(images=images, audio=audio, fps=Fraction(fps))


def write_mp4(path: Path, parts: VideoComponents, *, metadata: Mapping[str, str]) -> None:
    # Without this flag the container keeps only its standard tags.
    with av.open(str(path), mode="w", format="mp4", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata.update(metadata)
        _write(container, parts, codec="libx264", pixels="yuv420p", options={})


def write_webm(path: Path, parts: VideoComponents, *, codec: str, crf: float, metadata: Mapping[str, str]) -> None:
    name, pixels = {"vp9": ("libvpx-vp9", "yuv420p"), "av1": ("libsvtav1", "yuv420p10le")}[codec]
    options = {"crf": str(int(crf))}
    if codec == "av1":
        options["preset"] = "6"
    with kept_priority(), av.open(str(path), mode="w", format="webm") as container:
        container.metadata.update(metadata)
        _write(container, parts, codec=name, pixels=pixels, options=options)


def _write(
    container: OutputContainer, parts: VideoComponents, *, codec: str, pixels: str, options: dict[str, str]
) -> None:
    stream: VideoStream = container.add_stream(codec, rate=parts.fps, options=options)  # type: ignore[assignment]
    stream.width, stream.height = parts.images[0].size
    stream.pix_fmt = pixels
    if codec != "libx264":
        stream.bit_rate = 0
    # All streams must exist before the first packet.
    audio_stream: AudioStream | None = None
    if parts.audio is not None:
        audio_stream = container.add_stream("aac", rate=parts.audio.sample_rate)
        audio_stream.layout = parts.audio.layout
    for image in parts.images:
        container.mux(stream.encode(av.VideoFrame.from_image(image)))  # type: ignore[no-untyped-call]
    container.mux(stream.encode(None))
    if audio_stream is not None and parts.audio is not None:
        for frame in parts.audio.frames:
            # The encoder derives timestamps from the first sample.
            frame.pts = None
            container.mux(audio_stream.encode(frame))
        container.mux(audio_stream.encode(None))
