"""Open pages in the user's browser."""

import os
import webbrowser

from comfyrelay.system.platform import IS_MACOS, IS_WINDOWS, is_wsl


def open_url(url: str) -> bool:
    """Open an address. Returns false if there is no browser, or only one that runs in the terminal."""
    has_screen = any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
    if not (has_screen or IS_WINDOWS or IS_MACOS or is_wsl()):
        return False
    try:
        return webbrowser.open(url)
    except (OSError, webbrowser.Error):
        return False
