"""Serve the built web app."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import TypedDict

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from comfyrelay.web.desk import BARE_HEADERS

APP = Path(__file__).parent / "app"
NOT_BUILT = Path(__file__).parent / "static" / "not-built.html"
# Addresses that users open. All serve the same app; some have a page with preload hints.
PAGES = {
    **{"": "queue", "create": "create", "queue": "queue", "gallery": "gallery", "jobs": "job", "kit": "index"},
    **dict.fromkeys(("studio", "wallet", "console", "sign-in", "sign-up", "reset", "setup"), "index"),
}
# API clients get errors, not pages.
OF_PROGRAMS = ("/api/", "/files/", "/assets/")
TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
# Placeholder of the nonce in the page.
NONCE = "__NONCE__"
# Cookie with the theme chosen in this browser.
THEME_COOKIE = "comfyrelay_theme"
THEMES = ("dark", "light")
# Files in `assets` have their content hash in their name.
FOR_EVER = "public, max-age=31536000, immutable"
# Revalidated each time, so that versions are never mixed.
AGAIN = "no-cache"
# Returns the origins, in addition to this server, that job files come from.
Origins = Callable[[Request], Awaitable[Sequence[str]]]


async def _only_ours(_request: Request) -> Sequence[str]:
    return ()


class _Answer(TypedDict):
    """Parts of a response, not shared between requests."""

    content: bytes
    media_type: str
    headers: dict[str, str]


def is_page(path: str) -> bool:
    """Whether users, not programs, open this address."""
    return _area(path) in PAGES


def make_router(*, app: Path = APP, storage_origins: Origins = _only_ours) -> APIRouter:
    """The routes of the app. Job files may come from these origins, too."""
    router = APIRouter(include_in_schema=False)

    # hashed files are read once; together about a megabyte
    kept: dict[tuple[str, bool], _Answer] = {}

    async def page(request: Request) -> Response:
        name = PAGES[_area(request.url.path)]
        return _page(app, name, request, await storage_origins(request))

    async def asset(name: str, request: Request) -> Response:
        key = name, "gzip" in request.headers.get("Accept-Encoding", "")
        if key not in kept:
            kept[key] = _file(app / "assets", name, FOR_EVER, may_be_smaller=key[1])
        return Response(**kept[key])

    async def root_file(request: Request) -> Response:
        return Response(**_file(app, request.url.path.strip("/"), AGAIN))

    for area in PAGES:
        for path in (f"/{area}", f"/{area}/{{rest:path}}") if area else ("/",):
            router.add_api_route(path, page, methods=["GET"])
    router.add_api_route("/assets/{name}", asset, methods=["GET"])
    for name in ("icon.svg", "mask.svg"):
        router.add_api_route(f"/{name}", root_file, methods=["GET"])
    return router


async def nowhere(request: Request, *, app: Path = APP, storage_origins: Origins = _only_ours) -> Response | None:
    """The page for an unknown address: the app, which says so. `None` for programs."""
    asks_for_a_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
    if not asks_for_a_page or request.url.path.startswith(OF_PROGRAMS):
        return None
    return _page(app, "index", request, await storage_origins(request), status_code=404)


def _page(app: Path, name: str, request: Request, origins: Sequence[str], *, status_code: int = 200) -> Response:
    found = _text(app / f"{name}.html")
    if found is None:
        return HTMLResponse(_text(NOT_BUILT), status_code=503, headers=BARE_HEADERS)
    nonce = token_urlsafe(16)
    headers = {"Content-Security-Policy": policy(nonce, origins), "Cache-Control": AGAIN}
    theme = request.cookies.get(THEME_COOKIE)
    if theme in THEMES:
        # set on the server, so that no other theme flashes and no script blocks the first paint
        found = found.replace("<html", f'<html data-theme="{theme}"', 1)
    return HTMLResponse(found.replace(NONCE, nonce), status_code=status_code, headers=headers)


def _area(path: str) -> str:
    return path.strip("/").split("/")[0]


def _text(place: Path) -> str | None:
    return place.read_text("utf-8") if place.is_file() else None


def policy(nonce: str, storage_origins: Sequence[str] = ()) -> str:
    """Content security policy: no inline code except styles with this response's nonce."""
    files = " ".join(["'self'", "blob:", *storage_origins])
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' 'nonce-{nonce}'",
            "font-src 'self'",
            # blob: previews of chosen files before their upload
            f"img-src {files}",
            f"media-src {files}",
            " ".join(["connect-src 'self'", *storage_origins]),
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _file(folder: Path, name: str, caching: str, *, may_be_smaller: bool = False) -> _Answer:
    place = folder / name
    # a flat folder, so a name with a path matches none of its files
    if place.parent != folder or place.suffix not in TYPES or not place.is_file():
        raise HTTPException(404, "There is no such page.")
    headers = {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    # compressed at build time
    smaller = place.with_name(f"{name}.gz")
    if may_be_smaller and smaller.is_file():
        place, headers["Content-Encoding"] = smaller, "gzip"
    return _Answer(content=place.read_bytes(), media_type=TYPES[Path(name).suffix], headers=headers)
