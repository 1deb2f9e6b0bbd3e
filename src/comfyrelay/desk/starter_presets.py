"""Presets that every desk begins with: quick to look at, good enough to choose from, and as good as it gets."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _preset(name: str, *, steps: int, frames: int, megapixels: float) -> dict[str, Any]:
    """By role, and for scripts by key. No width and height: they would bend what is not of their shape."""
    return {"steps": steps, "length": frames, "megapixels": megapixels, "profile": name}


# Video models take 4 n + 1 frames.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "look-dev": _preset("look-dev", steps=8, frames=33, megapixels=0.25),
        "medium": _preset("medium", steps=16, frames=49, megapixels=0.5),
        "production": _preset("production", steps=30, frames=81, megapixels=1.0),
    }
)
