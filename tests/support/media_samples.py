"""Small media files."""

import io
import struct
import wave
import zlib
from fractions import Fraction

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.stream import Disposition
from av.video.stream import VideoStream
from PIL import Image

from comfyrelay.system.thread_priority import kept_priority

RATE = 48000


def image(kind: str, size: tuple[int, int] = (64, 48), *, frames: int = 1) -> bytes:
    pictures = [Image.effect_noise(size, 20 + number).convert("RGB") for number in range(frames)]
    file = io.BytesIO()
    # only for several frames: JPEG and BMP do not have these options
    more = {"save_all": True, "append_images": pictures[1:]} if frames > 1 else {}
    pictures[0].save(file, kind, **more)
    return file.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """Return a small PNG whose header claims a huge image."""
    return png_of((b"IHDR", png_size(width, height)), (b"IDAT", zlib.compress(bytes(1000))))


def png_with_two_sizes(first: tuple[int, int], last: tuple[int, int]) -> bytes:
    """Return a PNG that Pillow reads in its last size."""
    width, height = last
    rows = zlib.compress(bytes((1 + 3 * width) * height))
    return png_of((b"IHDR", png_size(*first)), (b"IHDR", png_size(*last)), (b"IDAT", rows))


def png_with_default_image(size: tuple[int, int] = (64, 48)) -> bytes:
    """Return an animation of one frame, after an image that is not part of it."""
    width, height = size
    rows = zlib.compress(bytes((1 + 3 * width) * height))
    return png_of(
        (b"IHDR", png_size(width, height)),
        (b"acTL", struct.pack(">II", 1, 0)),
        (b"IDAT", rows),
        (b"fcTL", struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 10, 0, 0)),
        (b"fdAT", struct.pack(">I", 1) + rows),
    )


def png_size(width: int, height: int) -> bytes:
    return struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)


def png_of(*chunks: tuple[bytes, bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (*chunks, (b"IEND", b""))
    )


def webp_that_claims(width: int, height: int) -> bytes:
    """Return 34 bytes that claim to be a huge image."""
    bits = (width - 1) | (height - 1) << 14
    body = b"VP8L" + struct.pack("<IBI", 14, 0x2F, bits) + bytes(9)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def gif_with_frames(*sizes: tuple[int, int]) -> bytes:
    """Return a GIF with a screen of one pixel, whose frames claim these sizes."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(3) + b"\xff\xff\xff"
    comment = b"\x21\xfe\x02hi\x00"
    frames = (b"\x2c" + struct.pack("<HHHHB", 0, 0, *size, 0) + b"\x02\x02\x44\x01\x00" for size in sizes)
    return screen + comment + b"".join(frames) + b"\x3b"


def gif_of(frames: int) -> bytes:
    """Return a small GIF that takes long to decode."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(3) + b"\xff\xff\xff"
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return screen + frame * frames + b"\x3b"


def png_with_text(size: int) -> bytes:
    """Return a small PNG with a compressed text of this many bytes."""
    return png_with_compressed(b"Comment", bytes(size))


def png_with_compressed(name: bytes, content: bytes) -> bytes:
    data = image("PNG")
    text = name + b"\0\0" + zlib.compress(content)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    # insert it after the header, which takes 33 bytes with the signature
    return data[:33] + chunk + data[33:]


def video(
    container: str = "mp4",
    codec: str = "libx264",
    *,
    frames: int = 25,
    rate: int = 25,
    size: tuple[int, int] = (64, 48),
    sound: bool = False,
    cover: bool = False,
    pixels: str = "yuv420p",
) -> bytes:
    file = io.BytesIO()
    with kept_priority(), av.open(file, mode="w", format=container) as output:
        stream = output.add_stream(codec, rate=rate)
        assert isinstance(stream, VideoStream)
        (stream.width, stream.height), stream.pix_fmt = size, pixels
        speaker = _speaker(output, "aac") if sound else None
        picture_stream = _cover_stream(output, "png", "rgb24") if cover else None
        for number in range(frames):
            picture = Image.effect_noise(size, 20 + number).convert("RGB")
            output.mux(stream.encode(av.VideoFrame.from_image(picture)))  # type: ignore[no-untyped-call]
        output.mux(stream.encode(None))
        if speaker:
            _speak(output, speaker)
        if picture_stream:
            _add_cover(output, picture_stream)
    return file.getvalue()


def mkv_that_claims(seconds: float, data: bytes) -> bytes:
    """Return a Matroska file whose header claims another duration."""
    name = b"\x44\x89\x88"
    assert data.count(name) == 1
    before, _, after = data.partition(name)
    return before + name + struct.pack(">d", seconds * 1000) + after[8:]


def in_superframes(data: bytes, *, frames: int) -> bytes:
    """Return a VP9 video whose packets contain this number of frames each."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data), mode="r") as source, av.open(file, mode="w", format="webm") as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        packets = [bytes(packet) for packet in source.demux(video=0) if packet.size]
        for number in range(0, len(packets), frames):
            group = packets[number : number + frames]
            marker = bytes([0b11011000 | len(group) - 1])
            index = marker + b"".join(struct.pack("<I", len(frame)) for frame in group) + marker
            packet = av.Packet(b"".join(group) + index)
            packet.stream, packet.time_base = stream, Fraction(1, 1000)
            packet.pts = packet.dts = 40 * number // frames
            packet.is_keyframe = number == 0
            output.mux(packet)
    return file.getvalue()


def with_two_tracks(*frames: int) -> bytes:
    """Return a video whose tracks have these numbers of frames."""
    file = io.BytesIO()
    with av.open(file, mode="w", format="mp4") as output:
        streams = [output.add_stream("libx264", rate=25) for _ in frames]
        for stream in streams:
            assert isinstance(stream, VideoStream)
            (stream.width, stream.height), stream.pix_fmt = (64, 48), "yuv420p"
        for stream, count in zip(streams, frames, strict=True):
            for number in range(count):
                picture = Image.effect_noise((64, 48), 20 + number).convert("RGB")
                output.mux(stream.encode(av.VideoFrame.from_image(picture)))  # type: ignore[no-untyped-call]
            output.mux(stream.encode(None))
    return file.getvalue()


def as_chapter_pictures(data: bytes) -> bytes:
    """Mark the first track of an MP4 as the chapter pictures of the second, so that FFmpeg sees a cover."""
    movie, first = data.index(b"moov") - 4, data.index(b"trak")
    second = data.index(b"trak", first + 4) - 4
    reference = struct.pack(">I4sI4sI", 20, b"tref", 12, b"chap", 1)

    def longer(at: int) -> bytes:
        return struct.pack(">I", int.from_bytes(data[at : at + 4]) + len(reference))

    end = second + int.from_bytes(data[second : second + 4])
    between = data[movie + 4 : second] + longer(second) + data[second + 4 : end]
    return data[:movie] + longer(movie) + between + reference + data[end:]


def in_fragments(data: bytes) -> bytes:
    """Return the same video as an MP4 whose frames are not in its index."""
    file = io.BytesIO()
    options = {"movflags": "frag_every_frame+empty_moov+delay_moov"}
    with (
        av.open(io.BytesIO(data), mode="r") as source,
        av.open(file, mode="w", format="mp4", options=options) as output,
    ):
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    return file.getvalue()


def video_with_hidden_size() -> bytes:
    """Return a video of 64 × 48 pixels whose header claims 0 × 0."""
    size = struct.pack("<II", 64, 48)
    data = video("avi", "mjpeg", frames=2, pixels="yuvj420p")
    assert size in data
    return data.replace(size, bytes(8))


def audio(container: str, codec: str, *, cover: bool = False) -> bytes:
    file = io.BytesIO()
    with av.open(file, mode="w", format=container) as output:
        stream = _speaker(output, codec)
        if cover:
            _add_cover(output, _cover_stream(output, "mjpeg", "yuvj420p"))
        _speak(output, stream)
    return file.getvalue()


def _cover_stream(output: OutputContainer, codec: str, pixels: str) -> VideoStream:
    picture = output.add_stream(codec, rate=1)
    assert isinstance(picture, VideoStream)
    picture.width, picture.height, picture.pix_fmt = 64, 48, pixels
    picture.time_base = Fraction(1, 1000)
    picture.disposition = Disposition.attached_pic
    return picture


def _add_cover(output: OutputContainer, picture: VideoStream) -> None:
    output.mux(picture.encode(av.VideoFrame(64, 48, picture.pix_fmt or "")))
    output.mux(picture.encode(None))


def wav(seconds: int = 1, tags: bytes = b"") -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1)
        output.setsampwidth(2)
        output.setframerate(8000)
        output.writeframes(bytes(16000 * seconds))
    data = file.getvalue()
    if tags:
        info = b"INFOIART" + struct.pack("<I", len(tags)) + tags
        data += b"LIST" + struct.pack("<I", len(info)) + info
        data = data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    return data


def _speaker(output: OutputContainer, codec: str) -> AudioStream:
    stream = output.add_stream(codec, rate=RATE)
    assert isinstance(stream, AudioStream)
    stream.layout = "mono"
    return stream


def _speak(output: OutputContainer, stream: AudioStream) -> None:
    for number in range(40):
        frame = AudioFrame("s16", "mono", 1024)
        frame.sample_rate = RATE
        frame.pts = number * 1024
        frame.planes[0].update(bytes(range(256)) * 8)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))
