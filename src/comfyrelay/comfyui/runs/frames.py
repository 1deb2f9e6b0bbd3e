"""Parse the binary preview frames of ComfyUI's WebSocket."""

import struct
from dataclasses import dataclass

import orjson

_PREVIEW, _PREVIEW_WITH_METADATA = 1, 4
_FORMATS = {1: "image/jpeg", 2: "image/png"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewFrame:
    image: bytes
    mime_type: str
    prompt_id: str | None = None
    node_id: str | None = None


def parse_frame(frame: bytes) -> PreviewFrame | None:
    """Return the preview in a frame, or `None` if the frame is invalid or of another kind."""
    try:
        kind, second = struct.unpack_from(">II", frame)
        if kind == _PREVIEW:
            return PreviewFrame(image=frame[8:], mime_type=_FORMATS.get(second, "image/jpeg"))
        if kind == _PREVIEW_WITH_METADATA:
            about = orjson.loads(frame[8 : 8 + second])
            return PreviewFrame(
                image=frame[8 + second :],
                mime_type=str(about.get("image_type") or "image/jpeg"),
                prompt_id=about.get("prompt_id"),
                node_id=about.get("node_id"),
            )
    except (struct.error, ValueError, AttributeError):
        return None
    return None
