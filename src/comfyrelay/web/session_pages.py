"""Pages for browsers without a session. Each page is a single response, with its style."""

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
# Forms post only to this server. Without a referrer, browsers would not send the origin.
FORM_HEADERS = {
    **BARE_HEADERS,
    "Content-Security-Policy": BARE_HEADERS["Content-Security-Policy"].replace(
        "form-action 'none'", "form-action 'self'"
    ),
    "Referrer-Policy": "same-origin",
}
SIGN_IN_PATH = "/sign-in"


def read_page(name: str) -> str:
    """Return a page with the style that all these pages share."""
    style = (FILES / "page.css").read_text("utf-8")
    return (FILES / name).read_text("utf-8").replace("__STYLE__", style)


def closed_page() -> Response:
    """Return the page that explains how to get a session."""
    return HTMLResponse(read_page("closed.html"), status_code=401, headers=BARE_HEADERS)


def editor_closed_page(url: str) -> Response:
    """Return the page that explains how to open the editor. `url` is the address of ComfyRelay's pages."""
    page = read_page("editor-closed.html").replace("__URL__", escape(url))
    return HTMLResponse(page, status_code=401, headers=BARE_HEADERS)


def sign_in_page(problem: str = "", *, status_code: int = 401, headers: Mapping[str, str] | None = None) -> Response:
    """Return the page that asks for the password."""
    page = read_page("sign-in.html").replace("<!-- problem -->", escape(problem))
    return HTMLResponse(page, status_code=status_code, headers={**FORM_HEADERS, **(headers or {})})


def opened_page() -> Response:
    """Return the page that redirects to the app."""
    return HTMLResponse(read_page("opened.html"), headers=BARE_HEADERS)
