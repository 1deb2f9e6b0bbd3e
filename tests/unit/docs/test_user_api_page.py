"""The pages of the user API and of the Comfy API document every route."""

import re

from fastapi.routing import APIRoute

from comfyrelay.server import comfy_api, user
from comfyrelay.server.operations import files
from tests.support.paths import ROOT

PAGE = "".join((ROOT / "docs" / "reference" / name).read_text("utf-8") for name in ("api-user.md", "api-comfy.md"))
ROUTES = [
    (method, route.path)
    for router in (*(lazy.load() for lazy in (*user.ROUTERS, *comfy_api.ROUTERS)), files.router)
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
]


def test_every_route_is_documented() -> None:
    assert ROUTES
    assert [f"{method} {path}" for method, path in ROUTES if not is_documented(method, path)] == []


def is_documented(method: str, path: str) -> bool:
    plain = re.sub(r"\{\w+_id\}", "{id}", path).replace("{path:path}", "{path}")
    verb = plain.rpartition("/")[2]
    is_listed = f"`{method} {plain}`" in PAGE
    is_abbreviated = "{id}/" in plain and (f"`{method} …/{verb}`" in PAGE or f"`/{verb}`" in PAGE)
    is_file = plain == "/files/{path}" and f"`{method}`" in PAGE
    return is_listed or is_abbreviated or is_file
