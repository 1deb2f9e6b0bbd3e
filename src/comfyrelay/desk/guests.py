"""The routes that a guest may call: a browser whose session was created with the password.

A route that is not listed is refused. Do not list a route that shows or creates a credential, makes the desk call a URL
later, runs a guest's graph, or saves values that the owner submits later: such access would outlive the password.
"""

import re
from collections.abc import Iterator

from starlette.routing import compile_path
from starlette.types import Scope

from comfyrelay.web.app_files import route_paths

GUEST_ROUTES = (
    # The session
    "GET /api/entry",
    "GET /api/me",
    "POST /api/logout",
    "GET /api/events",
    # The desk
    "GET /api/desk",
    "GET /api/desk/unreachable-comfyui",
    "GET /api/desk/now",
    "GET /api/desk/sample",
    "GET /api/slots",
    # Create
    "GET /api/effects",
    "GET /api/effects/{slug}",
    "GET /api/workflows",
    "GET /api/missing",
    "GET /api/desk/models",
    "GET /api/desk/models/metadata",
    "GET /api/desk/models/picture",
    "GET /api/presets",
    "POST /api/videos/uploads",
    "GET /api/videos/uploads/{file_id}",
    "POST /api/ai-jobs",
    "POST /api/desk/batches",
    "POST /api/desk/batches/estimate",
    "GET /api/desk/script",
    "POST /api/desk/script/preview",
    # Queue
    "GET /api/queue",
    "GET /api/queue/counts",
    "GET /api/queue/{batch_id}/items",
    "POST /api/queue/clear",
    "POST /api/queue/pause",
    "POST /api/queue/resume",
    "GET /api/views",
    "PUT /api/views",
    "DELETE /api/views/{view_id}",
    "GET /api/batches",
    "GET /api/batches/{batch_id}",
    "GET /api/batches/{batch_id}/grid",
    *(
        f"POST /api/batches/{{batch_id}}/{action}"
        for action in ("again", "cancel", "move", "pause", "resume", "retry-failed")
    ),
    # Jobs
    "GET /api/ai-jobs",
    "POST /api/ai-jobs/bulk",
    "GET /api/ai-jobs/{job_id}",
    "DELETE /api/ai-jobs/{job_id}",
    *(f"POST /api/ai-jobs/{{job_id}}/{action}" for action in ("again", "cancel", "move", "pause", "resume", "retry")),
    *(f"GET /api/ai-jobs/{{job_id}}/{part}" for part in ("events", "history", "logs", "preview")),
    "POST /api/ai-jobs/{job_id}/outputs/{number}/as-input",
    "GET /api/desk/jobs/{job_id}",
    "GET /api/desk/jobs/{job_id}/files/{number}",
    "GET /api/desk/jobs/{job_id}/workflow",
    # Gallery
    "GET /api/gallery",
    "GET /api/gallery/days",
    "GET /api/gallery/index",
    "GET /api/gallery/items",
    "POST /api/gallery/marks",
    "POST /api/gallery/delete",
    "POST /api/gallery/zip",
    "GET /api/gallery/zips/{zip_id}",
    "POST /api/desk/gallery/copy",
    "GET /api/collections",
    "POST /api/collections",
    "PATCH /api/collections/{collection_id}",
    "DELETE /api/collections/{collection_id}",
    # The files of the page, which contain no data
    *(f"GET {path}" for path in route_paths()),
)


def _patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for route in GUEST_ROUTES:
        method, _, path = route.partition(" ")
        yield method, compile_path(path)[0]


_PATTERNS = tuple(_patterns())


def may_call(scope: Scope) -> bool:
    """Whether a guest may make this request."""
    method, path = scope.get("method"), scope["path"]
    return any(method == allowed and pattern.match(path) for allowed, pattern in _PATTERNS)
