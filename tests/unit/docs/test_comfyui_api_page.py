"""The page about ComfyUI's API documents every route."""

import re

from comfyrelay.server.comfyui_api.app import MODULES
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "api-comfyui.md").read_text("utf-8")
ROUTES = [
    (method, route.path)
    for module in MODULES
    for route in module.routes.routes
    for method in sorted((route.methods or set()) - {"HEAD"})
]


def test_every_route_is_documented() -> None:
    assert ROUTES
    assert [f"{method} {path}" for method, path in ROUTES if not is_documented(method, path)] == []


def is_documented(method: str, path: str) -> bool:
    plain = re.sub(r"\{(prompt|job)_id\}", "{id}", path).replace("{file:path}", "{file}").replace("node_class", "class")
    return any(f"`{method} {known}`" in PAGE for known in (plain, plain.removeprefix("/api")))
