"""The page in the user's browser."""

from __future__ import annotations

import os
import platform
import sys
import webbrowser
from html import escape

from comfyrelay import atomic


def open_page(link: str) -> bool:
    """Open a link in the browser; false where there is none.

    Everybody on a machine sees what programs are started with, so the browser is given a file that only the user can
    read, and finds the link there.
    """
    if not _has_screen():
        return False
    from comfyrelay.owner import state_folder

    path = state_folder() / "open.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}">\n'
        atomic.write(path, content.encode(), mode=0o600)
        return webbrowser.open(path.as_uri())
    except (OSError, webbrowser.Error):
        return False


def _has_screen() -> bool:
    """Not where a browser would take over the terminal."""
    if sys.platform in ("darwin", "win32") or "microsoft" in platform.release().lower():
        return True
    return any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
