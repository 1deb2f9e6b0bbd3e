"""Pages for browsers without a session. Each page is a single file."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from fastapi.responses import HTMLResponse, Response

FILES = Path(__file__).parent / "static"
# These pages load nothing and are not cached.
BARE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# Forms post to this server only. Without a referrer, browsers would not send the origin.
FORM_HEADERS = {
    **BARE_HEADERS,
    "Content-Security-Policy": BARE_HEADERS["Content-Security-Policy"].replace(
        "form-action 'none'", "form-action 'self'"
    ),
    "Referrer-Policy": "same-origin",
}
SIGN_IN_PATH = "/sign-in"


def closed_page() -> Response:
    """Return the page that explains how to get a session."""
    return HTMLResponse((FILES / "closed.html").read_text("utf-8"), status_code=401, headers=BARE_HEADERS)


def editor_closed_page(url: str) -> Response:
    """Return the page that explains how to open the editor. `url` is the address of ComfyRelay's pages."""
    page = (FILES / "editor-closed.html").read_text("utf-8").replace("__URL__", escape(url))
    return HTMLResponse(page, status_code=401, headers=BARE_HEADERS)


def sign_in_page(problem: str = "", *, status_code: int = 401, headers: Mapping[str, str] | None = None) -> Response:
    """Return the page that asks for the password."""
    page = (FILES / "sign-in.html").read_text("utf-8").replace("<!-- problem -->", escape(problem))
    return HTMLResponse(page, status_code=status_code, headers={**FORM_HEADERS, **(headers or {})})


def opened_page() -> Response:
    """Return the page that redirects to the app."""
    return HTMLResponse((FILES / "opened.html").read_text("utf-8"), headers=BARE_HEADERS)
