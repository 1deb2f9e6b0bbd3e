"""The pages of a desk that nobody had to sign in for: each is one file, which loads no other."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from fastapi.responses import HTMLResponse, Response

FILES = Path(__file__).parent / "static"
# For pages that nobody had to sign in for: nothing is loaded, and nothing is kept.
BARE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# A form is sent to this server alone; with no referrer at all a browser would not say that it is its own.
FORM_HEADERS = {
    **BARE_HEADERS,
    "Content-Security-Policy": BARE_HEADERS["Content-Security-Policy"].replace(
        "form-action 'none'", "form-action 'self'"
    ),
    "Referrer-Policy": "same-origin",
}
SIGN_IN_PATH = "/sign-in"


def closed_page() -> Response:
    """What somebody without a session is shown: how to get one."""
    return HTMLResponse((FILES / "closed.html").read_text("utf-8"), status_code=401, headers=BARE_HEADERS)


def sign_in_page(problem: str = "", *, status_code: int = 401, headers: Mapping[str, str] | None = None) -> Response:
    """What somebody without a session is shown where a password opens the page."""
    page = (FILES / "sign-in.html").read_text("utf-8").replace("<!-- problem -->", escape(problem))
    return HTMLResponse(page, status_code=status_code, headers={**FORM_HEADERS, **(headers or {})})


def opened_page() -> Response:
    """On to the page itself."""
    return HTMLResponse((FILES / "opened.html").read_text("utf-8"), headers=BARE_HEADERS)
