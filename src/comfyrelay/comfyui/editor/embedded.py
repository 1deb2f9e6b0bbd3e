"""Read the graph and workflow that ComfyUI embeds in the images, videos, audio files and models it saves.

Only headers and texts are read; nothing is decoded. Images are parsed here, because some savers put the texts where
libraries do not look. Videos and audio are read with PyAV.
"""

import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.comfyui.graphs.graph import MAX_BYTES, Graph, check_graph
from comfyrelay.errors import GraphError
from comfyrelay.media_types import AUDIO_CONTAINERS
from comfyrelay.pyav import open_to_read, tags_of

# The name of a text (empty if it has none), and its content.
NamedText = tuple[str, bytes | str]

_NAMES = ("prompt", "workflow")
# A file contains a graph, a workflow and a few other texts. More texts are ignored.
_MAX_TEXTS, _MAX_IN_ALL = 64, 2 * MAX_BYTES
# Formats that are not read. ComfyUI's own savers embed no text in most of them.
UNREAD_SUFFIXES = (".bmp", ".exr", ".gltf", ".obj", ".ply")
_EXIF_MARK = b"Exif\0\0"
_JPEG_EXIF, _JPEG_COMMENT, _JPEG_SCAN = 0xE1, 0xFE, 0xDA
_TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
# ASCII and UNDEFINED of TIFF, and the tag with camera texts.
_TIFF_TEXTS, _TIFF_CAMERA = (2, 7), 0x8769
_USER_COMMENT = re.compile(rb"^(?:ASCII|UNICODE|JIS|\0{3,8})\0*")
_LABEL = re.compile(r"^\s*(prompt|workflow)\s*:\s*(?=\{)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedded:
    """Embedded data of a file: the graph that produced it, and the editor workflow."""

    graph: Graph | None = None
    workflow: Mapping[str, Any] | None = None


def read_embedded(path: Path) -> Embedded | None:
    """Return the embedded data of a file, or `None` if ComfyUI did not make it or the data was stripped."""
    try:
        with path.open("rb") as file:
            return embedded_in(file)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}.") from None


def embedded_in(file: BinaryIO) -> Embedded | None:
    """Return the embedded data of an open file. A server calls it in a probe process, which limits memory and time."""
    found: dict[str, Any] = {}
    try:
        for name, text in _json_candidates(_texts(file)):
            _read_text(found, name, text)
    except (struct.error, zlib.error, IndexError):
        # The file is truncated or has another format: use the data that was found so far.
        pass
    graph, workflow = found.get("prompt"), found.get("workflow")
    return Embedded(graph=graph, workflow=workflow) if graph or workflow else None


def _json_candidates(texts: Iterator[NamedText]) -> Iterator[NamedText]:
    """Yield the texts that could be JSON, up to a maximum number and size."""
    count = size = 0
    for name, text in texts:
        size += len(text)
        if size > _MAX_IN_ALL:
            return
        # UTF-16 contains this byte, too.
        if (b"{" in text) if isinstance(text, bytes) else ("{" in text):
            count += 1
            yield name, text
            if count == _MAX_TEXTS:
                return


def _texts(file: BinaryIO) -> Iterator[NamedText]:
    head = file.read(16)
    file.seek(0)
    read = next((reader for signature, reader in _READERS if signature.match(head)), None)
    return read(file) if read is not None else _of_container(file)


def _of_png(file: BinaryIO) -> Iterator[NamedText]:
    file.seek(8)
    while len(header := file.read(8)) == 8:
        size, kind = struct.unpack(">I4s", header)
        if kind not in (b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"comf") or size > MAX_BYTES:
            file.seek(size + 4, 1)
            continue
        name, _, rest = file.read(size).partition(b"\0")
        file.seek(4, 1)
        match kind:
            case b"tEXt" | b"comf":
                yield name.decode("latin-1"), rest
            case b"zTXt":
                yield name.decode("latin-1"), _inflate(rest[1:])
            case b"iTXt":
                text = rest[2:].split(b"\0", 2)[-1]
                yield name.decode("latin-1"), _inflate(text) if rest[:1] == b"\x01" else text
            case _:
                yield from _of_exif(name + b"\0" + rest)


def _of_webp(file: BinaryIO) -> Iterator[NamedText]:
    file.seek(12)
    while len(header := file.read(8)) == 8:
        kind, size = struct.unpack("<4sI", header)
        if kind == b"EXIF" and size <= MAX_BYTES:
            yield from _of_exif(file.read(size))
            size = 0
        # Chunks start at even offsets.
        file.seek(size + size % 2, 1)


def _of_jpeg(file: BinaryIO) -> Iterator[NamedText]:
    file.seek(2)
    while len(header := file.read(4)) == 4:
        mark, kind, size = struct.unpack(">BBH", header)
        if mark != 0xFF or kind == _JPEG_SCAN or size < 2:
            return
        part = file.read(size - 2)
        if kind == _JPEG_EXIF and part.startswith(_EXIF_MARK):
            yield from _of_exif(part)
        elif kind == _JPEG_COMMENT:
            yield "comment", part


def _of_gif(file: BinaryIO) -> Iterator[NamedText]:
    data = file.read(MAX_BYTES)
    at = data.find(b"!\xfe")
    while at != -1:
        at += 2
        parts = []
        while at < len(data) and (size := data[at]):
            parts.append(data[at + 1 : at + 1 + size])
            at += 1 + size
        yield "comment", b"".join(parts)
        at = data.find(b"!\xfe", at)


def _of_exif(data: bytes) -> Iterator[NamedText]:
    return _of_tiff(io.BytesIO(data.removeprefix(_EXIF_MARK)))


def _of_tiff(file: BinaryIO) -> Iterator[NamedText]:
    order = _TIFF_ORDERS.get(file.read(4))
    if order is None:
        return
    tables = [struct.unpack(f"{order}I", file.read(4))[0]]
    places: set[tuple[int, int]] = set()
    for table in tables:
        file.seek(table)
        (count,) = struct.unpack(f"{order}H", file.read(2))
        entries = file.read(12 * count)
        for number, (tag, kind, size, value) in enumerate(struct.iter_unpack(f"{order}HHII", entries)):
            if tag == _TIFF_CAMERA and len(tables) == 1:
                tables.append(value)
            elif kind in _TIFF_TEXTS and size <= MAX_BYTES:
                at = value if size > 4 else table + 2 + 12 * number + 8
                if (at, size) in places:
                    continue
                places.add((at, size))
                file.seek(at)
                yield "", _USER_COMMENT.sub(b"", file.read(size))


def _of_avif(file: BinaryIO) -> Iterator[NamedText]:
    # The offset of EXIF is in nested tables: searching for its header is simpler.
    data = file.read(MAX_BYTES)
    for mark in _TIFF_ORDERS:
        if (at := data.find(mark)) != -1:
            yield from _of_exif(data[at:])


def _of_glb(file: BinaryIO) -> Iterator[NamedText]:
    file.seek(12)
    size, kind = struct.unpack("<I4s", file.read(8))
    match _parse_bytes(file, size) if kind == b"JSON" else None:
        case {"asset": {"extras": dict() as extras}}:
            yield "", json.dumps(extras)


def _of_safetensors(file: BinaryIO) -> Iterator[NamedText]:
    (size,) = struct.unpack("<Q", file.read(8))
    match _parse_bytes(file, size):
        case {"__metadata__": dict() as metadata}:
            yield "", json.dumps(metadata)


def _of_svg(file: BinaryIO) -> Iterator[NamedText]:
    for part in file.read(MAX_BYTES).split(b"<![CDATA[")[1:]:
        yield "", part.partition(b"]]>")[0]


_READERS: tuple[tuple[re.Pattern[bytes], Callable[[BinaryIO], Iterator[NamedText]]], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), _of_png),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), _of_webp),
    (re.compile(rb"\xff\xd8"), _of_jpeg),
    (re.compile(rb"GIF8[79]a"), _of_gif),
    (re.compile(rb"II\*\0|MM\0\*"), _of_tiff),
    (re.compile(rb".{4}ftypavi[fs]", re.DOTALL), _of_avif),
    (re.compile(rb"glTF"), _of_glb),
    # The first eight bytes are the size of the header. Sizes of more than three bytes are not accepted.
    (re.compile(rb".{3}\0{5}\{", re.DOTALL), _of_safetensors),
    (re.compile(rb"(\xef\xbb\xbf)?\s*<"), _of_svg),
)


def _of_container(file: BinaryIO) -> Iterator[NamedText]:
    try:
        import av
    except ImportError:
        raise GraphError(
            'Reading workflows from video and audio needs an extra: pip install "comfyrelay[media]".'
        ) from None
    try:
        # The protocol list is a second safeguard: some formats open other files.
        safe = {"format_whitelist": AUDIO_CONTAINERS, "protocol_whitelist": "none"}
        # FFmpeg decodes the first frames when it opens a file, unless they are too large.
        few = {"max_pixels": "1"}
        with open_to_read(file, container_options=safe, options=few) as container:
            yield from tags_of(container.metadata).items()
            for stream in container.streams:
                yield from tags_of(stream.metadata).items()
    except (av.FFmpegError, OSError, ValueError):
        # Neither video nor audio.
        return


def _parse_bytes(file: BinaryIO, size: int) -> Any:
    """Parse the next `size` bytes as JSON, unless they exceed the limit."""
    return _parse(_decode(file.read(size))) if size <= MAX_BYTES else None


def _inflate(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, MAX_BYTES)


def _read_text(found: dict[str, Any], name: str, text: bytes | str) -> None:
    plain = _decode(text) if isinstance(text, bytes) else text
    if (label := _LABEL.match(plain)) is not None:
        name, plain = label[1], plain[label.end() :]
    value = _parse(plain)
    if name.lower() in _NAMES:
        _store_if_valid(found, name.lower(), value)
    elif isinstance(value, dict):
        # Video savers put the graph and the workflow into one comment.
        for part in _NAMES:
            inner = value.get(part)
            _store_if_valid(found, part, _parse(inner) if isinstance(inner, str) else inner)


def _store_if_valid(found: dict[str, Any], name: str, value: Any) -> None:
    if name == "workflow" and is_editor_file(value):
        found.setdefault(name, value)
    elif name == "prompt":
        try:
            found.setdefault(name, check_graph(value))
        except GraphError:
            return


def _decode(data: bytes) -> str:
    data = data.rstrip(b"\0")
    if b"\0" in data[:4]:
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _parse(text: str) -> Any:
    try:
        # ComfyUI writes NaN for values that change in every run.
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
