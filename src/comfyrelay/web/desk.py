"""The page of the desk: plain files, from this server alone."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException

FILES = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    # blob: is a file that was chosen and is shown before it is sent
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; media-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    # asked again each time, so that a newer version is never mixed with files of the old one
    "Cache-Control": "no-cache",
}
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
router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    return _file("index.html")


@router.get("/static/{name}")
async def static(name: str) -> Response:
    return _file(name)


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


def _file(name: str) -> Response:
    place = FILES / name
    # one folder without others in it, so a name with a way to elsewhere is none of its files
    if place.parent != FILES or place.suffix not in TYPES or not place.is_file():
        raise HTTPException(404, "There is no such page.")
    return FileResponse(place, media_type=TYPES[place.suffix], headers=HEADERS)
