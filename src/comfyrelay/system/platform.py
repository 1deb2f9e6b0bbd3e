"""Identify the operating system of this process."""

import platform
import sys
from typing import Final, TypeVar

T = TypeVar("T")

IS_WINDOWS: Final[bool] = sys.platform == "win32"
IS_MACOS: Final[bool] = sys.platform == "darwin"
IS_LINUX: Final[bool] = sys.platform == "linux"
# ComfyUI's name for the operating system.
PLATFORM: Final[str] = sys.platform


def pick(*, windows: T, macos: T, others: T) -> T:
    """Return the value for this system."""
    return windows if IS_WINDOWS else macos if IS_MACOS else others


def describe() -> str:
    """Return the usual name of this system."""
    return "WSL" if is_wsl() else pick(windows="Windows", macos="macOS", others=platform.system())


def is_wsl() -> bool:
    return IS_LINUX and "microsoft" in platform.release().lower()
