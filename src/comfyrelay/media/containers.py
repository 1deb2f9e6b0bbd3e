"""Check that a video or audio file is readable, and measure it."""

from dataclasses import replace
from os import SEEK_END
from typing import BinaryIO, Literal

import av
from av.audio.frame import AudioFrame
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL.Image import Image

from comfyrelay.media.info import MediaInfo, MediaRefused, ProbeLimits, check_pixels
from comfyrelay.media.packet_frames import INDEXED, counter
from comfyrelay.media_types import AUDIO_CONTAINERS, VIDEO_CONTAINERS
from comfyrelay.pyav import open_to_read

FORMATS = {"video": VIDEO_CONTAINERS, "audio": AUDIO_CONTAINERS}
# A usual MP4 has about five parts.
MAX_BOXES = 1000


def read_container(file: BinaryIO, kind: Literal["audio", "video"], limits: ProbeLimits) -> MediaInfo:
    """Decode the first frame. Raises PyAV's errors or `MediaRefused`."""
    with open_container(file, kind, limits) as container:
        return _video(container, limits) if kind == "video" else _audio(container)


def measure_container(file: BinaryIO, kind: Literal["audio", "video"], limits: ProbeLimits) -> MediaInfo:
    """Like `read_container`, but measure the content: a header may claim that an hour of video lasts a second."""
    info = read_container(file, kind, limits)
    has_index = kind == "video" and not _has_fragments(file)
    file.seek(0)
    with open_container(file, kind, limits) as container:
        if kind == "audio":
            seconds, frames = _decoded_seconds(container), None
        else:
            stream = video_stream(container, limits)
            counts = _indexed_frames(container) if has_index and "mp4" in container.format.name else {}
            seconds = 0.0
            if not counts.get(stream.index):
                seconds, counts = _count_packets(container, stream)
            # Programs choose different tracks. A track with one frame is a cover.
            if any(count > 1 for index, count in counts.items() if index != stream.index):
                raise MediaRefused("tracks")
            frames = counts[stream.index]
    return replace(info, duration_seconds=max(seconds, info.duration_seconds or 0.0), frames=frames)


def _decoded_seconds(container: InputContainer) -> float:
    return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0) if frame.sample_rate)


def _indexed_frames(container: InputContainer) -> dict[int, int]:
    """Return the number of frames of each video track by the index of the file, if it lists each frame."""
    streams = _video_streams(container)
    counts = {stream.index: len(getattr(stream, "index_entries", ())) for stream in streams}
    # A cover has no entries.
    listed = [stream for stream in streams if counts[stream.index]]
    return counts if all(stream.codec.canonical_name in INDEXED for stream in listed) else {}


def _count_packets(container: InputContainer, stream: VideoStream) -> tuple[float, dict[int, int]]:
    """Return the time that the packets of the stream span, and the number of frames of each video track."""
    streams = _video_streams(container)
    counters = {each.index: counter(each.codec.canonical_name, each.codec_context.extradata) for each in streams}
    counts, first, end = dict.fromkeys(counters, 0), None, 0
    for packet in container.demux(*streams):
        count = counters[packet.stream.index]
        if count is None:
            counts[packet.stream.index] += len(packet.decode())
        elif packet.size:
            counts[packet.stream.index] += count(bytes(packet))
        if packet.stream is stream and packet.pts is not None:
            first = packet.pts if first is None else min(first, packet.pts)
            end = max(end, packet.pts + (packet.duration or 0))
    if first is None or stream.time_base is None:
        return 0.0, counts
    return float((end - first) * stream.time_base), counts


def _has_fragments(file: BinaryIO) -> bool:
    """Whether a file may be an MP4 with frames that its index does not list."""
    size, at = file.seek(0, SEEK_END), 0
    for _ in range(MAX_BOXES):
        if at >= size:
            return False
        file.seek(at)
        head = file.read(16)
        length = int.from_bytes(head[8:16] if head[:4] == b"\0\0\0\1" else head[:4])
        if head[4:8] == b"moof" or length < 8:
            return True
        at += length
    return True


def open_container(file: BinaryIO, kind: Literal["audio", "video"], limits: ProbeLimits) -> InputContainer:
    return open_to_read(
        file,
        # The protocol list is a second safeguard: some formats open files without asking `io_open`.
        container_options={"format_whitelist": FORMATS[kind], "protocol_whitelist": "none"},
        options={"max_pixels": str(limits.max_pixels)},
        timeout=limits.timeout_seconds,
    )


def _video_streams(container: InputContainer) -> list[VideoStream]:
    """Return the video streams that have a decoder."""
    return [stream for stream in container.streams.video if getattr(stream, "codec_context", None) is not None]


def video_stream(container: InputContainer, limits: ProbeLimits) -> VideoStream:
    """Choose the video stream before decoding anything."""
    # The cover image of a song is also a video stream.
    streams = [stream for stream in _video_streams(container) if not stream.disposition & Disposition.attached_pic]
    if not streams:
        raise MediaRefused("unreadable")
    for stream in _video_streams(container):
        check_pixels(stream.width, stream.height, limits)
    # A few frames do not justify one thread per core.
    streams[0].codec_context.thread_count = 1
    return streams[0]


def rotated(image: Image, degrees: int) -> Image:
    """Apply the rotation that the camera recorded."""
    return image.rotate(degrees, expand=True) if degrees % 360 else image


def _video(container: InputContainer, limits: ProbeLimits) -> MediaInfo:
    stream = video_stream(container, limits)
    frame = next(container.decode(stream), None)
    if not isinstance(frame, VideoFrame):
        raise MediaRefused("unreadable")
    # The header may claim a different size from that of the frame, such as 0.
    check_pixels(frame.width, frame.height, limits)
    is_upright = frame.rotation % 180 == 0
    return MediaInfo(
        kind="video",
        width=frame.width if is_upright else frame.height,
        height=frame.height if is_upright else frame.width,
        duration_seconds=_duration(container),
        frames=stream.frames or None,
    )


def _audio(container: InputContainer) -> MediaInfo:
    frame = next(container.decode(audio=0), None) if container.streams.audio else None
    if not isinstance(frame, AudioFrame):
        raise MediaRefused("unreadable")
    return MediaInfo(kind="audio", duration_seconds=_duration(container))


def _duration(container: InputContainer) -> float | None:
    return None if container.duration is None else container.duration / av.time_base
