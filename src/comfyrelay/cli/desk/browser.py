"""Open the page in the user's browser."""

from __future__ import annotations

from html import escape

from comfyrelay.system import atomic
from comfyrelay.system.browser import open_url


def open_page(link: str) -> bool:
    """Open a link in the browser. Returns `False` if there is no browser.

    All users of a machine can see command lines, so the browser opens a file that only this user can read, and the file
    redirects to the link.
    """
    from comfyrelay.system.user_folders import state_folder

    path = state_folder() / "open.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}">\n'
        atomic.write(path, content.encode(), mode=0o600)
    except OSError:
        return False
    return open_url(path.as_uri())
