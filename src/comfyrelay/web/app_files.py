"""The web app: files that `ui/build.py` has made, served from this server alone."""

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
# What people open: each is the same app, which shows what its address says. Some have a page that names what they need,
# so that browsers fetch it at once.
PAGES = {
    **{"": "queue", "create": "create", "queue": "queue", "gallery": "gallery", "jobs": "job", "kit": "index"},
    **dict.fromkeys(("studio", "wallet", "console", "sign-in", "sign-up", "reset", "setup"), "index"),
}
# Whoever asks for these knows what to do with an error.
OF_PROGRAMS = ("/api/", "/files/", "/assets/")
TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
# Stands in the page where each answer has a number of its own.
NONCE = "__NONCE__"
# What the app writes down of the theme that was chosen in this browser.
THEME_COOKIE = "comfyrelay_theme"
THEMES = ("dark", "light")
# A file in `assets` has the hash of its content in its name.
FOR_EVER = "public, max-age=31536000, immutable"
# Asked again each time, so that a newer version is never mixed with files of the old one.
AGAIN = "no-cache"
# Finds the origins, beside this server's own, that files of jobs come from and go to.
Origins = Callable[[Request], Awaitable[Sequence[str]]]


async def _only_ours(_request: Request) -> Sequence[str]:
    return ()


class _Answer(TypedDict):
    """What a response is made of; no two requests share one."""

    content: bytes
    media_type: str
    headers: dict[str, str]


def is_page(path: str) -> bool:
    """Whether people open this address, and no program."""
    return _area(path) in PAGES


def make_router(*, app: Path = APP, storage_origins: Origins = _only_ours) -> APIRouter:
    """The routes of the app. Files of jobs are shown from the server itself, and from these origins."""
    router = APIRouter(include_in_schema=False)

    # what has its hash in its name is read once; all of it is about a megabyte
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
    """What somebody who opens an address that does not exist sees: the app, which says so. Nothing for a program."""
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
        # who chose one sees no flash of the other, and no script need run before the first paint
        found = found.replace("<html", f'<html data-theme="{theme}"', 1)
    return HTMLResponse(found.replace(NONCE, nonce), status_code=status_code, headers=headers)


def _area(path: str) -> str:
    return path.strip("/").split("/")[0]


def _text(place: Path) -> str | None:
    return place.read_text("utf-8") if place.is_file() else None


def policy(nonce: str, storage_origins: Sequence[str] = ()) -> str:
    """What a browser may load for the app: nothing inline but styles that carry the number of this answer."""
    files = " ".join(["'self'", "blob:", *storage_origins])
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' 'nonce-{nonce}'",
            "font-src 'self'",
            # blob: is a file that was chosen and is shown before it is sent
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
    # one folder without others in it, so a name with a way to elsewhere is none of its files
    if place.parent != folder or place.suffix not in TYPES or not place.is_file():
        raise HTTPException(404, "There is no such page.")
    headers = {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    # compressed when it was built
    smaller = place.with_name(f"{name}.gz")
    if may_be_smaller and smaller.is_file():
        place, headers["Content-Encoding"] = smaller, "gzip"
    return _Answer(content=place.read_bytes(), media_type=TYPES[Path(name).suffix], headers=headers)
