"""Serve the built web app."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import TypedDict

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from comfyrelay.web.session_pages import BARE_HEADERS, read_page

APP = Path(__file__).parent / "app"
# HTML pages by the addresses that users open. All pages load the same app; some have preload hints.
PAGES = {
    **{"": "queue", "create": "create", "queue": "queue", "gallery": "gallery", "jobs": "job", "kit": "index"},
    **dict.fromkeys(("studio", "wallet", "console", "setup"), "index"),
    **dict.fromkeys(("catalogue", "sign-in", "sign-up", "forgot", "reset", "confirm"), "index"),
}
# Requests to these paths get errors, not pages.
API_PREFIXES = ("/api/", "/files/", "/assets/")
ASSET_PATH = "/assets/{name}"
ROOT_FILES = ("/icon.svg", "/licenses.txt", "/mask.svg")
TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
# Placeholder for the nonce in a page.
NONCE = "__NONCE__"
# Cookie with the theme chosen in this browser.
THEME_COOKIE = "comfyrelay_theme"
THEMES = ("dark", "light")
# The names of files in `assets` contain a hash of the content.
CACHE_FOREVER = "public, max-age=31536000, immutable"
# Browsers revalidate other files each time, so that versions are never mixed.
REVALIDATE = "no-cache"
# Returns the origins of job files other than this server.
Origins = Callable[[Request], Awaitable[Sequence[str]]]


class _ResponseParts(TypedDict):
    """The arguments of a response. A response object itself cannot be shared between requests."""

    content: bytes
    media_type: str
    headers: dict[str, str]


def is_page(path: str) -> bool:
    """Whether this address is opened by users rather than programs."""
    return _area(path) in PAGES


def make_router(storage_origins: Origins) -> APIRouter:
    """Return the routes of the app."""
    router = APIRouter(include_in_schema=False)
    # Hashed files are read once. Their total size is about a megabyte.
    cached: dict[tuple[str, bool], _ResponseParts] = {}

    async def page(request: Request) -> Response:
        name = PAGES[_area(request.url.path)]
        return _page(name, request, await storage_origins(request))

    async def asset(name: str, request: Request) -> Response:
        accepts_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
        if (key := (name, accepts_gzip)) not in cached:
            cached[key] = _file(APP / "assets", name, CACHE_FOREVER, accepts_gzip=accepts_gzip)
        return Response(**cached[key])

    async def root_file(request: Request) -> Response:
        return Response(**_file(APP, request.url.path.strip("/"), REVALIDATE))

    for path in _page_paths():
        router.add_api_route(path, page, methods=["GET"])
    router.add_api_route(ASSET_PATH, asset, methods=["GET"])
    for path in ROOT_FILES:
        router.add_api_route(path, root_file, methods=["GET"])
    return router


def route_paths() -> list[str]:
    """Return the paths of all routes of the app."""
    return [*_page_paths(), ASSET_PATH, *ROOT_FILES]


def _page_paths() -> list[str]:
    return ["/", *(path for area in PAGES if area for path in (f"/{area}", f"/{area}/{{rest:path}}"))]


async def not_found_page(request: Request, storage_origins: Origins) -> Response | None:
    """Return the app for an unknown address, where the app shows an error; `None` for requests that do not accept a
    page."""
    wants_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
    if not wants_page or request.url.path.startswith(API_PREFIXES):
        return None
    return _page("index", request, await storage_origins(request), status_code=404)


def _page(name: str, request: Request, origins: Sequence[str], *, status_code: int = 200) -> Response:
    path = APP / f"{name}.html"
    if not path.is_file():
        return HTMLResponse(read_page("not-built.html"), status_code=503, headers=BARE_HEADERS)
    html = path.read_text("utf-8")
    nonce = token_urlsafe(16)
    headers = {"Content-Security-Policy": policy(nonce, origins), "Cache-Control": REVALIDATE}
    theme = request.cookies.get(THEME_COOKIE)
    if theme in THEMES:
        # The server sets the theme, so that another theme does not flash and no script blocks the first paint.
        html = html.replace("<html", f'<html data-theme="{theme}"', 1)
    return HTMLResponse(html.replace(NONCE, nonce), status_code=status_code, headers=headers)


def _area(path: str) -> str:
    return path.strip("/").split("/")[0]


def policy(nonce: str, storage_origins: Sequence[str] = ()) -> str:
    """Return the content security policy. It forbids inline code, except styles with the nonce of this response."""
    files = " ".join(["'self'", "blob:", *storage_origins])
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' 'nonce-{nonce}'",
            "font-src 'self'",
            # The app shows files before their upload as `blob:` URLs.
            f"img-src {files}",
            f"media-src {files}",
            " ".join(["connect-src 'self'", *storage_origins]),
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _file(folder: Path, name: str, caching: str, *, accepts_gzip: bool = False) -> _ResponseParts:
    path = folder / name
    # The folder is flat, so a name with a path does not match any file.
    if path.parent != folder or path.suffix not in TYPES or not path.is_file():
        raise HTTPException(404, "There is no such page.")
    headers = {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    media_type = TYPES[path.suffix]
    # The build has compressed the files.
    compressed = path.with_name(f"{name}.gz")
    if accepts_gzip and compressed.is_file():
        path, headers["Content-Encoding"] = compressed, "gzip"
    return _ResponseParts(content=path.read_bytes(), media_type=media_type, headers=headers)
