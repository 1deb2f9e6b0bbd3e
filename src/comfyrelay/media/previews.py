"""Previews of running jobs: small temporary images that the holder of their URL may replace."""

from comfyrelay.media.image_headers import read_image_header

PREVIEWS = "previews"
TYPE = "image/jpeg"
MAX_BYTES = 64 * 1024
MAX_PIXELS = 2048 * 2048


def preview_path(tenant_id: str, job_id: str) -> str:
    return f"{PREVIEWS}/{tenant_id}/{job_id}.jpg"


def is_preview_path(path: str) -> bool:
    return path.startswith(f"{PREVIEWS}/")


def is_preview(data: bytes) -> bool:
    """Whether the data starts with the header of a JPEG of a reasonable size."""
    if len(data) > MAX_BYTES or not data.startswith(b"\xff\xd8\xff"):
        return False
    header = read_image_header(data)
    return header is not None and 0 < header.width * header.height <= MAX_PIXELS
