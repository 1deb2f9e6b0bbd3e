"""Presets of a new desk: draft, good and best."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _preset(name: str, *, steps: int, frames: int, megapixels: float) -> dict[str, Any]:
    """Values by role, and for scripts by key. Without sizes, which would distort other shapes."""
    return {"steps": steps, "length": frames, "megapixels": megapixels, "profile": name}


# Video models take 4 n + 1 frames.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "look-dev": _preset("look-dev", steps=8, frames=33, megapixels=0.25),
        "medium": _preset("medium", steps=16, frames=49, megapixels=0.5),
        "production": _preset("production", steps=30, frames=81, megapixels=1.0),
    }
)
