"""The operator's logo, which replaces ours."""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from comfyrelay.errors import ConfigurationError

TYPES = {".svg": "image/svg+xml", ".png": "image/png", ".webp": "image/webp"}
MAX_BYTES = 256 * 1024
_SETTING = "COMFYRELAY_STUDIO_LOGO"


@dataclass(frozen=True, kw_only=True, slots=True)
class Logo:
    content: bytes = field(repr=False)
    media_type: str
    # The URL changes with the content, so that browsers may cache the file.
    url: str

    @classmethod
    def load(cls, file: Path) -> Self:
        """Raise `ConfigurationError` if the file cannot be a logo."""
        media_type = TYPES.get(file.suffix.lower())
        if media_type is None:
            raise ConfigurationError(f"{_SETTING}: {file} must be one of these: {', '.join(TYPES)}.")
        try:
            with file.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(f"{_SETTING}: {file} cannot be read: {error.strerror}.") from error
        if not 0 < len(content) <= MAX_BYTES:
            raise ConfigurationError(f"{_SETTING}: {file} must have 1 to {MAX_BYTES} bytes.")
        return cls(content=content, media_type=media_type, url=f"/api/logo?v={sha256(content).hexdigest()[:12]}")
