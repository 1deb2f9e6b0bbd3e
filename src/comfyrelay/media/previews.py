"""Previews of running jobs: small images that the holder of their URL may replace, and that are not kept."""

from comfyrelay.media.image_headers import claim_of

PREVIEWS = "previews"
TYPE = "image/jpeg"
MAX_BYTES = 64 * 1024
MAX_PIXELS = 2048 * 2048


def preview_path(tenant_id: str, job_id: str) -> str:
    return f"{PREVIEWS}/{tenant_id}/{job_id}.jpg"


def is_preview_path(path: str) -> bool:
    return path.startswith(f"{PREVIEWS}/")


def is_preview(data: bytes) -> bool:
    """Whether the data starts like a JPEG of a reasonable size."""
    if len(data) > MAX_BYTES or not data.startswith(b"\xff\xd8\xff"):
        return False
    claim = claim_of(data)
    return claim is not None and 0 < claim.width * claim.height <= MAX_PIXELS
