"""The files of ComfyUI's editor, and the start of its session.

They are served from the origin of ComfyUI's API, never from that of ComfyRelay's pages, because the editor runs
third-party code.
"""

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from comfyrelay.errors import ComfyRelayError, Unauthorized
from comfyrelay.extras import is_installed
from comfyrelay.media_types import guess_media_type
from comfyrelay.server.comfyui_api.routing import error_body, session_cookie
from comfyrelay.server.http.context import Context
from comfyrelay.services.comfyui_api.sessions import SESSION_SECONDS
from comfyrelay.settings import Settings
from comfyrelay.web.session_pages import editor_closed_page

EXTENSIONS = "/extensions"
OPEN_PATH = "/open"
# ComfyRelay's own scripts.
OWN, OWN_SCRIPTS = "comfyrelay", Path(__file__).with_name("editor_scripts")
# Query parameters of the workflow that the editor opens: a template and its source.
TARGET = ("template", "source")
MAX_TARGET_LENGTH = 200
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
# Vite puts the hash of the content into the name.
_HASHED = re.compile(r"-[\w-]{8}\.\w+$")


def frontend_routes(settings: Settings) -> list[BaseRoute]:
    """Return the routes of the editor, if it is installed."""
    folder = _folder()
    if folder is None:
        return []
    policy = _policy((folder / "index.html").read_text("utf-8"))

    async def index(request: Request) -> Response:
        context: Context = request.app.state.context
        if not await _has_session(request, context):
            return editor_closed_page(context.settings.base_url)
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
        return Response((folder / "index.html").read_bytes(), media_type="text/html", headers=headers)

    return [
        Route("/", index, methods=["GET"]),
        Route(OPEN_PATH, start_session, methods=["GET"]),
        *(
            Mount(f"{EXTENSIONS}/{name}", _Files(directory=path))
            for name, path in {OWN: OWN_SCRIPTS, **settings.editor_packs}.items()
        ),
        Mount("/", _Files(directory=folder)),
    ]


def extension_folders(settings: Settings) -> Mapping[str, Path]:
    """Return the folders with scripts, by name."""
    folder = _folder()
    if folder is None:
        return {}
    return {"core": folder / "extensions" / "core", OWN: OWN_SCRIPTS, **settings.editor_packs}


async def start_session(request: Request) -> Response:
    """Exchange the code of a link for a session, and open the editor."""
    context: Context = request.app.state.context
    try:
        secret = await context.engine.comfyui_api.sessions.start(request.query_params.get("code", "")[:100])
    except Unauthorized:
        # The browser that used the link may open it again.
        if not await _has_session(request, context):
            return editor_closed_page(context.settings.base_url)
        return RedirectResponse("/", status_code=303)
    except ComfyRelayError as error:
        return error_body(error)
    given = {name: value for name in TARGET if (value := request.query_params.get(name, "")[:MAX_TARGET_LENGTH])}
    response = RedirectResponse(f"/?{urlencode(given)}" if given else "/", status_code=303)
    response.set_cookie(
        session_cookie(context),
        secret,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="lax",
        secure=(context.settings.comfyui_url or "").startswith("https://"),
    )
    return response


class _Files(StaticFiles):
    """The files of a folder, with types that do not depend on the system. Hashed names never change their content."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        name = Path(full_path).name
        if (media_type := guess_media_type(name)) is not None:
            response.headers["Content-Type"] = media_type
        is_final = _HASHED.search(name) and Path(full_path).parent.name == "assets"
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_final else "no-cache"
        return response


def _folder() -> Path | None:
    spec = find_spec("comfyui_frontend_package") if is_installed("editor") else None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "static"


async def _has_session(request: Request, context: Context) -> bool:
    secret = request.cookies.get(session_cookie(context))
    return secret is not None and await context.editor_user_of(secret) is not None


def _policy(index: str) -> str:
    """Return the content security policy of the editor: it cannot load from or call other servers."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in _INLINE_SCRIPT.findall(index)
    ]
    return "; ".join(
        [
            "default-src 'none'",
            " ".join(["script-src 'self'", *hashes]),
            "style-src 'self' 'unsafe-inline'",
            "font-src 'self' data:",
            "img-src 'self' blob: data:",
            "media-src 'self' blob: data:",
            "connect-src 'self' blob: data:",
            "worker-src 'self' blob:",
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
